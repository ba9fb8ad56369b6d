"""Renderer: works with all chat templates in TRL's wheel, with SmolLM2's and the tiny model's.

The tests use the tiny tokenizer with each template and add the special tokens that it names.
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
    "{% for message in messages %}"
    "{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\n"
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}"
    "{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

# Templates that take only lists of text and image parts.
PARTS_ONLY = {
    "idefics3",
    "idefics3_training",
    "llava_next",
    "llava_next_training",
    "smolvlm",
    "smolvlm_training",
}

# The token that ends a turn, from the generation configs of each family's models.
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
    r"<[|｜][^<>\n|｜]{1,40}[|｜]?>|<[a-z_]{1,30}\|>|</?s>"
    r"|<(?:start|end)_of_(?:turn|utterance|image)>|</?(?:think|tool_call|tool_response)>"
)


def _templates() -> dict[str, str]:
    """The templates by name. TRL is not imported: its dependencies may be missing."""
    spec = importlib.util.find_spec("trl")
    assert spec is not None, "TRL's wheel is not installed: pip install --no-deps trl"
    assert spec.submodule_search_locations is not None
    files = sorted((Path(spec.submodule_search_locations[0]) / "chat_templates").glob("*.jinja"))
    assert len(files) > 50
    shipped = {f.stem: f.read_text(encoding="utf-8") for f in files}
    return {**shipped, "smollm2": SMOLLM2, "tiny": ""}


TEMPLATES = _templates()
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
    """Byte-by-byte ids, as a model might sample them; encoding the text gives other ids."""
    tokenizer = tokenizer_of(name)
    ids = [id for byte in words for id in tokenizer.encode(byte, add_special_tokens=False)]
    assert ids != tokenizer.encode(words, add_special_tokens=False)
    return ids + (ending(name) if end is None else tokenizer.encode(end, add_special_tokens=False))


def ending(name: str) -> list[int]:
    """The ids a model samples to end its turn: one token; two in the Cohere 2 family."""
    text = "<|END_RESPONSE|><|END_OF_TURN_TOKEN|>" if name.startswith("cohere2") else end_of(name)
    return tokenizer_of(name).encode(text, add_special_tokens=False)


def text_after(name: str, messages: list[Message], words: str) -> str:
    """The text that the template writes after an assistant message, in the full conversation."""
    text = tokenizer_of(name).apply_chat_template(
        [m.as_dict() for m in messages], tokenize=False, add_generation_prompt=True
    )
    assert text.count(words) == 1
    return text[text.index(words) + len(words) :]


@pytest.mark.parametrize("name", TEXT)
def test_append_mode_keeps_sampled_ids_and_adds_the_templates_text(name):
    renderer, tokenizer = renderer_of(name), tokenizer_of(name)
    messages = [Message("user", "What is first?")]
    conversation = Conversation(renderer)
    assert conversation.begin(messages).restarted
    assert conversation.ids == tokenizer.encode(
        tokenizer.apply_chat_template(
            [m.as_dict() for m in messages], tokenize=False, add_generation_prompt=True
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
        messages += [Message("assistant", words), observation]
        assert not added.restarted
        assert conversation.ids == [*before, *ids, *added.ids]
        # gpt-oss samples another end token than the template writes between turns
        expected = text_after(name, messages, words)
        closed = (
            expected.replace("<|end|>", "<|return|>", 1) if name.startswith("gptoss") else expected
        )
        assert tokenizer.decode([*ending(name), *added.ids]) == closed


@pytest.mark.parametrize("name", TEXT)
def test_a_cut_turn_gets_an_unsampled_end_token(name):
    tokenizer, renderer = tokenizer_of(name), renderer_of(name)
    cut = tuple(sampled(name, "\\boxed{11} is it", end=""))
    ended = tuple(sampled(name, "\\boxed{7}"))
    script = [
        Generation(cut, (-1.0,) * len(cut), FinishReason.LENGTH),
        Generation(ended, (-1.0,) * len(ended)),
    ] * 2
    episode = run_episode(
        "game:GuessTheNumber-v0-easy", ScriptedPolicy(script, tokenizer), renderer, seed=3
    )
    assert [t.status for t in episode.turns] == [TurnStatus.VALID] * len(episode.turns)
    assert len(episode.turns) >= 2
    (sequence,) = token_sequences(episode)
    (_, first, end), *_ = sequence.spans
    assert sequence.ids[first:end] == cut
    closing = end_of(name)
    if name.startswith("gptoss"):
        closing = "<|end|>"
    elif name.startswith("cohere2"):
        closing = "<|END_RESPONSE|>"
    assert tokenizer.decode([sequence.ids[end]]) == closing
    assert sequence.turn_of[end] == -1
    assert sequence.logprobs[end] == 0.0


@pytest.mark.parametrize("name", TEXT)
def test_turn_end_is_the_token_that_models_sample(name):
    assert tokenizer_of(name).decode([renderer_of(name).turn_end]) == end_of(name)


@pytest.mark.parametrize("name", TEXT)
def test_unsupported_system_and_tool_messages_become_user_messages(name):
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
def test_tool_messages_are_rendered_as_in_the_full_conversation(name):
    tokenizer = tokenizer_of(name)
    messages = [Message("user", "What is first?")]
    conversation = Conversation(renderer_of(name))
    conversation.begin(messages)
    for turn in range(3):
        words = f"answer number {turn} it is"
        ids = sampled(name, words, end="")
        conversation.act(ids, words)
        result = Message("tool", f"result {turn}")
        added = conversation.say([result])
        messages += [Message("assistant", words), result]
        assert tokenizer.decode(added.ids) == text_after(name, messages, words)
        if name.startswith("deepseek"):
            break  # it opens the list of tool outputs only once per conversation


@pytest.mark.parametrize("name", TEXT)
def test_template_mode_renders_the_full_conversation(name):
    renderer, tokenizer = renderer_of(name, "template"), tokenizer_of(name)
    messages = [Message("user", "What is first?")]
    conversation = Conversation(renderer)
    conversation.begin(messages)
    for turn in range(4):
        words = f"answer number {turn} it is"
        ids = tokenizer.encode(words, add_special_tokens=False) + ending(name)
        before = [*conversation.ids, *ids]
        conversation.act(ids, words)
        observation = Message("user", f"Observation {turn} \\boxed{{}}")
        added = conversation.say([observation])
        messages += [Message("assistant", words), observation]
        expected = tokenizer.apply_chat_template(
            [m.as_dict() for m in messages], tokenize=False, add_generation_prompt=True
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
def test_template_mode_starts_a_sequence_when_the_template_drops_thinking(name, rewrites):
    tokenizer, renderer = tokenizer_of(name), renderer_of(name, "template")
    text = "<think>\nlow and high\n</think>\n\n\\boxed{{{}}}"
    script = []
    for guess in (1, 2, 3, 4):
        ids = tuple(tokenizer.encode(text.format(guess) + end_of(name), add_special_tokens=False))
        script.append(Generation(ids, (-1.0,) * len(ids)))
    episode = run_episode(
        "game:GuessTheNumber-v0-easy", ScriptedPolicy(script, tokenizer), renderer, seed=3
    )
    sequences = token_sequences(episode)
    assert len(episode.turns) > 1
    assert len(sequences) == (len(episode.turns) if rewrites else 1)
    assert sorted(t for s in sequences for t in s.trained) == list(range(len(episode.turns)))
    for sequence in sequences:
        for turn, start, end in sequence.spans:
            assert sequence.ids[start:end] == episode.turns[turn].action_ids
            assert sequence.ids[:start] == episode.prompt_ids(turn)


@pytest.mark.parametrize("name", sorted(PARTS_ONLY))
def test_renderer_rejects_a_template_without_text_messages(name):
    with pytest.raises(RenderError, match="cannot render a second user message"):
        renderer_of(name)


@pytest.mark.parametrize("name", ["qwen3", "llama3_1", "gptoss", "glm4moe", "tiny"])
def test_adjacent_messages_of_one_role_are_joined(name):
    renderer = renderer_of(name)
    apart = [Message("user", "one"), Message("user", "two")]
    assert renderer.start(apart) == renderer.start([Message("user", "one\n\ntwo")])
    assert renderer.bridge(apart, ()) == renderer.bridge([Message("user", "one\n\ntwo")], ())


def test_template_kwargs_reach_the_template():
    plain = renderer_of("qwen3")
    quiet = Renderer(tokenizer_of("qwen3"), template_kwargs={"enable_thinking": False})
    messages = [Message("user", "hello")]
    more = quiet.start(messages)[len(plain.start(messages)) :]
    assert tokenizer_of("qwen3").decode(more) == "<think>\n\n</think>\n\n"


def test_sampled_end_of_a_tool_call_is_not_repeated():
    """GLM ends a turn with the token of the next speaker, which differs after a tool call."""
    renderer, result = renderer_of("glm4moe"), [Message("tool", "42")]
    end = tokenizer_of("glm4moe").convert_tokens_to_ids("<|observation|>")
    whole = renderer.bridge(result, ())
    assert whole[0] == end and renderer.bridge(result, (5, end)) == whole[1:]
    assert renderer.bridge(result, (5,)) == whole
