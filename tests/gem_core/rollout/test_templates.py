"""The renderer on every chat template that ships inside TRL's wheel, on SmolLM2's and on the tiny model's own.

A template is put on the tiny tokenizer, with the special tokens the template names added to it.
"""

from __future__ import annotations

import importlib.util
import re
from functools import cache
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from gem_core import (
    FinishReason,
    Generation,
    Message,
    Renderer,
    TurnStatus,
    run_episode,
    token_sequences,
)
from gem_core.errors import RenderError
from gem_core.policies import tiny_model_path
from gem_core.policies.scripted import ScriptedPolicy
from gem_core.rollout.renderer import Conversation

SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + "
    "message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\n' }}{% endif %}"
)

# Templates that take only lists of parts, text beside images: not text templates.
PARTS_ONLY = {
    "idefics3",
    "idefics3_training",
    "llava_next",
    "llava_next_training",
    "smolvlm",
    "smolvlm_training",
}

# The token a model of that family ends its turn with, read off the models' generation configs, not off the renderer.
TURN_ENDS = {
    "cohere": "<|END_OF_TURN_TOKEN|>",
    "deepseek": "<｜end▁of▁sentence｜>",
    "diffusion_gemma": "<turn|>",
    "gemma4": "<turn|>",
    "gemma": "<end_of_turn>",
    "glm4moe": "<|user|>",
    "gptoss": "<|return|>",
    "lfm2": "<|im_end|>",
    "llama3": "<|eot_id|>",
    "muse_glimmer": "<|eot|>",
    "nemotron": "<|im_end|>",
    "phi3": "<|end|>",
    "qwen": "<|im_end|>",
    "smollm2": "<|im_end|>",
    "tiny": "<|im_end|>",
}

_SPECIAL = re.compile(
    r"<[|｜][^<>\n|｜]{1,40}[|｜]?>|<[a-z_]{1,30}\|>|</?s>|<(?:start|end)_of_(?:turn|utterance|image)>|</?(?:think|tool_call|tool_response)>"
)


def _found() -> dict[str, str]:
    """The templates by name; TRL itself is not imported, since its wheel may be there without what it needs."""
    spec = importlib.util.find_spec("trl")
    assert spec is not None, "TRL's wheel is not installed: pip install --no-deps trl"
    assert spec.submodule_search_locations is not None
    files = sorted((Path(spec.submodule_search_locations[0]) / "chat_templates").glob("*.jinja"))
    assert len(files) > 50
    shipped = {f.stem: f.read_text(encoding="utf-8") for f in files}
    return {**shipped, "smollm2": SMOLLM2, "tiny": ""}


TEMPLATES = _found()
TEXT = [name for name in TEMPLATES if name not in PARTS_ONLY]


@cache
def tokenizer_of(name: str):
    tokenizer = AutoTokenizer.from_pretrained(tiny_model_path())
    if name == "tiny":
        return tokenizer
    special = sorted({*_SPECIAL.findall(TEMPLATES[name]), "<bos>", "<eos>"})
    tokenizer.add_special_tokens(
        {"additional_special_tokens": special, "bos_token": "<bos>", "eos_token": "<eos>"}
    )
    if name.startswith("deepseek"):
        tokenizer.eos_token = TURN_ENDS["deepseek"]  # the template writes eos_token
    tokenizer.chat_template = TEMPLATES[name]
    return tokenizer


@cache
def renderer_of(name: str, mode: str = "append") -> Renderer:
    return Renderer(tokenizer_of(name), mode)


def end_of(name: str) -> str:
    return next(end for family, end in TURN_ENDS.items() if name.startswith(family))


def sampled(name: str, words: str, end: str | None = None) -> list[int]:
    """Ids as a model might sample them: byte by byte, which no encoding of the text would give back."""
    tokenizer = tokenizer_of(name)
    ids = [id for byte in words for id in tokenizer.encode(byte, add_special_tokens=False)]
    assert ids != tokenizer.encode(words, add_special_tokens=False)
    return ids + (ending(name) if end is None else tokenizer.encode(end, add_special_tokens=False))


def ending(name: str) -> list[int]:
    """All a model samples to end its turn: one token, and two in one family."""
    text = "<|END_RESPONSE|><|END_OF_TURN_TOKEN|>" if name.startswith("cohere2") else end_of(name)
    return tokenizer_of(name).encode(text, add_special_tokens=False)


def text_behind(name: str, messages: list[Message], words: str) -> str:
    """What the template writes behind an assistant's words when it renders the whole conversation."""
    text = tokenizer_of(name).apply_chat_template(
        [m.as_dict() for m in messages], tokenize=False, add_generation_prompt=True
    )
    assert text.count(words) == 1
    return text[text.index(words) + len(words) :]


@pytest.mark.parametrize("name", TEXT)
def test_append_mode_over_four_turns(name):
    """The sampled ids stand where they were sampled, and between them is exactly what the template writes."""
    renderer, tokenizer = renderer_of(name), tokenizer_of(name)
    said = [Message("user", "What is first?")]
    conversation = Conversation(renderer)
    assert conversation.begin(said).restarted
    assert conversation.ids == tokenizer.encode(
        tokenizer.apply_chat_template(
            [m.as_dict() for m in said], tokenize=False, add_generation_prompt=True
        ),
        add_special_tokens=False,
    )
    for turn in range(4):
        words = f"answer number {turn} it is"
        ids = sampled(name, words)
        before = list(conversation.ids)
        conversation.act(ids, words)
        observation = Message(
            "user",
            f"Observation {turn}:\n\n  1 < 2 & {{{{ x }}}} is\ttrue, \\boxed{{}} é" + "?" * turn,
        )
        added = conversation.say([observation])
        said += [Message("assistant", words), observation]
        assert not added.restarted
        assert conversation.ids == [*before, *ids, *added.ids]
        # gpt-oss ends its last turn with another token than the template writes once something follows
        expected = text_behind(name, said, words)
        closed = (
            expected.replace("<|end|>", "<|return|>", 1) if name.startswith("gptoss") else expected
        )
        assert tokenizer.decode([*ending(name), *added.ids]) == closed


@pytest.mark.parametrize("name", TEXT)
def test_a_cut_turn_gets_its_end_as_a_token_nobody_sampled(name):
    tokenizer, renderer = tokenizer_of(name), renderer_of(name)
    cut = tuple(sampled(name, "\\boxed{11} is it", end=""))
    whole = tuple(sampled(name, "\\boxed{7}"))
    script = [
        Generation(cut, (-1.0,) * len(cut), FinishReason.LENGTH),
        Generation(whole, (-1.0,) * len(whole)),
    ] * 2
    episode = run_episode(
        "game:GuessTheNumber-v0-easy", ScriptedPolicy(script, tokenizer), renderer, seed=3
    )
    assert [t.status for t in episode.turns] == [TurnStatus.VALID] * len(episode.turns)
    assert len(episode.turns) >= 2
    (view,) = token_sequences(episode)
    (_, first, end), *_ = view.spans
    assert view.ids[first:end] == cut
    closing = (
        "<|end|>"
        if name.startswith("gptoss")
        else "<|END_RESPONSE|>"
        if name.startswith("cohere2")
        else end_of(name)
    )
    assert tokenizer.decode([view.ids[end]]) == closing
    assert view.turn_of[end] == -1
    assert view.logprobs[end] == 0.0


@pytest.mark.parametrize("name", TEXT)
def test_the_turn_end_is_the_one_the_models_sample(name):
    assert tokenizer_of(name).decode([renderer_of(name).turn_end]) == end_of(name)


@pytest.mark.parametrize("name", TEXT)
def test_system_and_tool_messages_are_taken_or_become_the_users(name):
    renderer, tokenizer = renderer_of(name), tokenizer_of(name)
    conversation = Conversation(renderer)
    system, task = Message("system", "You are terse."), Message("user", "What is first?")
    conversation.begin([system, task])
    first = tokenizer.decode(conversation.ids)
    assert first.count("You are terse.") == first.count("What is first?") == 1
    if not renderer.takes_system:
        assert conversation.ids == list(
            renderer.start([Message("user", "You are terse.\n\nWhat is first?")])
        )
    for turn, role in enumerate(("tool", "user", "tool", "tool")):
        conversation.act(
            sampled(name, f"answer number {turn} it is"), f"answer number {turn} it is"
        )
        before = len(conversation.ids)
        conversation.say([Message(role, f"result {turn} of it")])
        bridge = tokenizer.decode(conversation.ids[before:])
        assert bridge.count(f"result {turn} of it") == 1
        if role == "tool" and not renderer.takes_tool:
            as_user = Conversation(renderer)
            as_user.begin([task])
            as_user.act(sampled(name, "answer number 9 it is"), "answer number 9 it is")
            assert (
                tokenizer.decode(as_user.say([Message("user", f"result {turn} of it")]).ids)
                == bridge
            )


@pytest.mark.parametrize("name", [n for n in TEXT if renderer_of(n).takes_tool])
def test_a_tool_result_is_written_as_the_template_writes_it(name):
    """In a small conversation as in a long one."""
    tokenizer = tokenizer_of(name)
    said = [Message("user", "What is first?")]
    conversation = Conversation(renderer_of(name))
    conversation.begin(said)
    for turn in range(3):
        words = f"answer number {turn} it is"
        ids = sampled(name, words, end="")
        conversation.act(ids, words)
        result = Message("tool", f"result {turn}")
        added = conversation.say([result])
        said += [Message("assistant", words), result]
        assert tokenizer.decode(added.ids) == text_behind(name, said, words)
        if name.startswith("deepseek"):
            break  # without tool calls in its own form, it opens the list of tool outputs only once in a conversation


@pytest.mark.parametrize("name", TEXT)
def test_template_mode_gives_what_the_template_makes_of_the_conversation(name):
    renderer, tokenizer = renderer_of(name, "template"), tokenizer_of(name)
    said = [Message("user", "What is first?")]
    conversation = Conversation(renderer)
    conversation.begin(said)
    for turn in range(4):
        words = f"answer number {turn} it is"
        ids = tokenizer.encode(words, add_special_tokens=False) + ending(name)
        before = [*conversation.ids, *ids]
        conversation.act(ids, words)
        observation = Message("user", f"Observation {turn} \\boxed{{}}")
        added = conversation.say([observation])
        said += [Message("assistant", words), observation]
        expected = tokenizer.apply_chat_template(
            [m.as_dict() for m in said], tokenize=False, add_generation_prompt=True
        )
        assert conversation.ids == tokenizer.encode(expected, add_special_tokens=False)
        assert added.restarted == (conversation.ids[: len(before)] != before)
        assert list(added.ids) == (
            conversation.ids if added.restarted else conversation.ids[len(before) :]
        )


@pytest.mark.parametrize(
    ("name", "rewrites"),
    [("qwen3", True), ("deepseek_r1_distill", True), ("qwen2_5", False), ("tiny", False)],
)
def test_template_mode_starts_a_row_where_the_template_drops_thinking(name, rewrites):
    tokenizer, renderer = tokenizer_of(name), renderer_of(name, "template")
    text = "<think>\nlow and high\n</think>\n\n\\boxed{{{}}}"
    script = []
    for guess in (1, 2, 3, 4):
        ids = tuple(tokenizer.encode(text.format(guess) + end_of(name), add_special_tokens=False))
        script.append(Generation(ids, (-1.0,) * len(ids)))
    episode = run_episode(
        "game:GuessTheNumber-v0-easy", ScriptedPolicy(script, tokenizer), renderer, seed=3
    )
    views = token_sequences(episode)
    assert len(episode.turns) > 1
    assert len(views) == (len(episode.turns) if rewrites else 1)
    assert sorted(t for v in views for t in v.trained) == list(range(len(episode.turns)))
    for view in views:
        for turn, start, end in view.spans:
            assert view.ids[start:end] == episode.turns[turn].action_ids
            assert view.ids[:start] == episode.prompt_ids(turn)


@pytest.mark.parametrize("name", sorted(PARTS_ONLY))
def test_a_template_that_takes_no_text_is_refused(name):
    with pytest.raises(RenderError, match="cannot render a second user message"):
        renderer_of(name)


@pytest.mark.parametrize("name", ["qwen3", "llama3_1", "gptoss", "glm4moe", "tiny"])
def test_neighbours_of_one_role_are_one_message(name):
    renderer = renderer_of(name)
    apart = [Message("user", "one"), Message("user", "two")]
    assert renderer.start(apart) == renderer.start([Message("user", "one\n\ntwo")])
    assert renderer.bridge(apart, ()) == renderer.bridge([Message("user", "one\n\ntwo")], ())


def test_options_reach_the_template():
    plain, quiet = (
        renderer_of("qwen3"),
        Renderer(tokenizer_of("qwen3"), template_kwargs={"enable_thinking": False}),
    )
    said = [Message("user", "hello")]
    more = quiet.start(said)[len(plain.start(said)) :]
    assert tokenizer_of("qwen3").decode(more) == "<think>\n\n</think>\n\n"
