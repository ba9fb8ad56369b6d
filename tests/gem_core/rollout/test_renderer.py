"""Renderer: messages to ids, with templates of every kind, in pure Python."""

from __future__ import annotations

import re
from typing import Any

import pytest
from byte_tokenizer import ByteTokenizer

from gem_core import Message, Renderer
from gem_core.errors import ConfigError, RenderError
from gem_core.rollout.renderer import Conversation

STYLES = ["chatml", "thinking", "no_system", "trims", "alternating"]
GENERATE = "<|im_start|>assistant\n"
END = 257


def user(content: str) -> Message:
    return Message("user", content)


def text(ids: Any) -> str:
    return ByteTokenizer().decode(ids)


def acted(conversation: Conversation, line: str) -> None:
    conversation.act([*ByteTokenizer().encode(line, add_special_tokens=False), END], line)


@pytest.mark.parametrize("style", STYLES)
def test_the_first_prompt_is_the_rendered_template(style: str) -> None:
    tokenizer = ByteTokenizer(style)
    rendered = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hé"}], add_generation_prompt=True
    )
    assert Renderer(tokenizer).start([user("hé")]) == tuple(
        tokenizer.encode(rendered, add_special_tokens=False)
    )


def test_a_repeated_text_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    renderer = Renderer(ByteTokenizer("chatml"))
    first = renderer.start([user("the rules")]), renderer.bridge([user("too low")], [END])
    monkeypatch.setattr(renderer.tokenizer, "encode", lambda *_, **__: 1 / 0)
    assert (renderer.start([user("the rules")]), renderer.bridge([user("too low")], [END])) == first
    with pytest.raises(ZeroDivisionError):
        renderer.start([user("other rules")])


@pytest.mark.parametrize(
    "content", ["O", " O\n", "a <b> c", "<|im_end|>", "", "日本", "gem7said", "x" * 1000]
)
@pytest.mark.parametrize("style", STYLES)
def test_append_and_template_mode_agree_without_a_rewrite(style: str, content: str) -> None:
    tokenizer = ByteTokenizer(style)
    both = [Conversation(Renderer(tokenizer, mode)) for mode in ("append", "template")]
    for conversation in both:
        assert conversation.begin([user("T")]).restarted
        for turn in range(2):
            acted(conversation, f"a{turn}")
            added = conversation.say([user(content)])
            assert not added.restarted
            assert text(conversation.ids).endswith(GENERATE)
    assert both[0].ids == both[1].ids


def test_the_end_token_is_added_only_if_it_was_not_sampled() -> None:
    conversation = Conversation(Renderer(ByteTokenizer()))
    conversation.begin([user("T")])
    conversation.act([65], "A")
    assert (
        text(conversation.say([user("O")]).ids)
        == f"<|im_end|>\n<|im_start|>user\nO<|im_end|>\n{GENERATE}"
    )
    conversation.act([65, END], "A")
    assert text(conversation.say([user("O")]).ids) == f"\n<|im_start|>user\nO<|im_end|>\n{GENERATE}"
    conversation.act([], "")
    assert text(conversation.say([user("O")]).ids).startswith("<|im_end|>\n")


def test_append_mode_keeps_thinking_and_template_mode_drops_it() -> None:
    line = "<think>hm</think>\n\n5"
    append, template = (
        Conversation(Renderer(ByteTokenizer("thinking"), mode)) for mode in ("append", "template")
    )
    for conversation in (append, template):
        conversation.begin([user("T")])
        acted(conversation, line)
    before = list(append.ids)
    assert not append.say([user("O")]).restarted
    assert append.ids[: len(before)] == before
    assert template.say([user("O")]).restarted
    assert "<think>" not in text(template.ids)


def test_sampled_ids_are_kept_even_if_they_are_not_valid_text() -> None:
    invalid_utf8 = [0xF0, 0x9F, 0xFF, 256, 65]
    conversation = Conversation(Renderer(ByteTokenizer()))
    start = len(conversation.begin([user("T")]).ids)
    conversation.act(invalid_utf8, "?")
    conversation.say([user("O")])
    assert conversation.ids[start : start + 5] == invalid_utf8


@pytest.mark.parametrize(("style", "takes"), [("chatml", True), ("no_system", False)])
def test_unsupported_roles_become_user_messages(style: str, takes: bool) -> None:
    renderer = Renderer(ByteTokenizer(style))
    assert (renderer.takes_system, renderer.takes_tool) == (takes, takes)
    first = text(renderer.start([Message("system", "be brief"), user("T")]))
    assert (
        "<|im_start|>system\nbe brief<|im_end|>" in first,
        "user\nbe brief\n\nT<|im_end|>" in first,
    ) == (takes, not takes)
    bridge = text(renderer.bridge([Message("tool", "42")], [END]))
    assert bridge.startswith("\n<|im_start|>tool\n42" if takes else "\n<|im_start|>user\n42")


def test_adjacent_messages_of_one_role_are_joined() -> None:
    renderer = Renderer(ByteTokenizer("alternating"))
    assert "user\none\n\ntwo<|im_end|>" in text(renderer.start([user("one"), user("two")]))
    assert "user\none\n\ntwo<|im_end|>" in text(renderer.bridge([user("one"), user("two")], [END]))


def test_a_continuation_is_appended_without_a_template() -> None:
    renderer = Renderer(ByteTokenizer())
    assert text(renderer.bridge([Message("continuation", "O1")], [65])) == "\nO1\n"
    assert "user\nO1<|im_end|>" in text(renderer.start([Message("continuation", "O1")])), (
        "at the start it is a user message"
    )


def test_a_tokenizer_without_a_template_renders_plain_text() -> None:
    conversation = Conversation(Renderer(ByteTokenizer("none")))
    assert (
        text(conversation.begin([Message("system", "be brief"), user("T")]).ids)
        == "<|begin|>be brief\nT\n"
    )
    conversation.act([65], "A")
    assert text(conversation.say([user("O")]).ids) == "\nO\n"
    assert text(conversation.ids) == "<|begin|>be brief\nT\nA\nO\n"


def test_chat_can_be_turned_off_but_needs_a_template() -> None:
    assert text(Renderer(ByteTokenizer(), chat=False).start([user("T")])) == "<|begin|>T\n"
    with pytest.raises(ConfigError, match="no chat template"):
        Renderer(ByteTokenizer("none"), chat=True)
    with pytest.raises(ConfigError, match="'append' or 'template'"):
        Renderer(ByteTokenizer(), "concat")  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["append", "template"])
def test_a_rewritten_context_restarts_unless_it_extends_the_last(mode: Any) -> None:
    conversation = Conversation(Renderer(ByteTokenizer(), mode))
    conversation.begin([user("T")])
    acted(conversation, "a")
    extended = conversation.rewrite([user("T"), Message("assistant", "a"), user("O")])
    assert not extended.restarted
    acted(conversation, "b")
    rewritten = conversation.rewrite([user("T"), Message("assistant", "b"), user("O2")])
    assert rewritten.restarted
    assert list(rewritten.ids) == conversation.ids
    acted(conversation, "c")
    assert not conversation.say([user("O3")]).restarted
    assert "O1" not in text(conversation.ids)


def test_bridges_do_not_run_the_template_again() -> None:
    tokenizer = ByteTokenizer()
    renderer = Renderer(tokenizer)
    tokenizer.calls = 0
    for turn in range(10):
        renderer.bridge([user(f"O{turn}")], [END])
    assert tokenizer.calls == 0


class Twice(ByteTokenizer):
    def apply_chat_template(self, conversation: Any, **kwargs: Any) -> str:  # type: ignore[override]
        text = super().apply_chat_template(conversation, **kwargs)
        return text + "".join(m["content"] for m in conversation if m["role"] == "assistant")


class OneTurn(ByteTokenizer):
    def apply_chat_template(self, conversation: Any, **kwargs: Any) -> str:  # type: ignore[override]
        if len(conversation) > 2:
            raise ValueError("one turn only")
        return super().apply_chat_template(conversation, **kwargs)


@pytest.mark.parametrize(
    ("tokenizer", "message"), [(Twice(), "2 times, not once"), (OneTurn(), "several turns")]
)
def test_renderer_rejects_a_template_that_is_not_token_exact(
    tokenizer: ByteTokenizer, message: str
) -> None:
    with pytest.raises(RenderError, match=message):
        Renderer(tokenizer)


class Llama2(ByteTokenizer):
    """A blank on both sides of an assistant message, then the end token."""

    def apply_chat_template(self, conversation: Any, **kwargs: Any) -> str:  # type: ignore[override]
        return "".join(
            f" {m['content']} <|im_end|>"
            if m["role"] == "assistant"
            else f"<|begin|>[INST] {m['content']} [/INST]"
            for m in conversation
        )


@pytest.mark.parametrize(
    ("action", "added"),
    [("A", " <|im_end|>"), ("A ", "<|im_end|>"), ("A<|im_end|>", ""), ("A <|im_end|>", "")],
)
def test_a_blank_before_the_end_token_does_not_repeat_it(action: str, added: str) -> None:
    tokenizer = Llama2()
    renderer = Renderer(tokenizer)
    assert renderer.turn_end == END
    ids = tokenizer.encode(action, add_special_tokens=False)
    assert text(renderer.bridge([user("O")], ids)) == f"{added}<|begin|>[INST] O [/INST]"


class Rounds(ByteTokenizer):
    """Numbers the rounds, as ChatGLM's template does."""

    def apply_chat_template(self, conversation: Any, **kwargs: Any) -> str:  # type: ignore[override]
        numbered, turn = [], 0
        for message in conversation:
            turn += message["role"] == "user"
            numbered.append({**message, "content": f"[Round {turn}] {message['content']}"})
        return super().apply_chat_template(numbered, **kwargs)


def test_append_mode_rejects_a_template_that_numbers_the_rounds() -> None:
    with pytest.raises(RenderError, match=r"a user message differently.*mode='template'"):
        Renderer(Rounds())
    conversation = Conversation(Renderer(Rounds(), "template"))
    conversation.begin([user("T")])
    for turn in range(2):
        acted(conversation, "a")
        conversation.say([user("O")])
        assert f"[Round {turn + 2}] O" in text(conversation.ids)


class Stamped(ByteTokenizer):
    """Writes the time before every message."""

    time = "10:00"

    def __init__(self) -> None:
        super().__init__()
        self.chat_template = "{{ strftime_now('%H:%M') }}"

    def apply_chat_template(self, conversation: Any, **kwargs: Any) -> str:  # type: ignore[override]
        stamped = [{**m, "content": f"{self.time} {m['content']}"} for m in conversation]
        return super().apply_chat_template(stamped, **kwargs)


def test_a_template_with_a_time_stamp_writes_the_time_of_the_message() -> None:
    tokenizer = Stamped()
    renderer = Renderer(tokenizer)
    tokenizer.time = "10:30"
    assert "user\n10:30 O" in text(renderer.bridge([user("O")], [END]))


class SentencePiece(ByteTokenizer):
    """Adds a blank to the start of every text, and takes it away when it decodes."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        blank = "" if text.startswith("<|") else " "
        return super().encode(blank + text, add_special_tokens=add_special_tokens)


def test_plain_text_after_an_action_has_no_extra_blank() -> None:
    renderer = Renderer(SentencePiece("none"))
    assert text(renderer.bridge([user("O")], [65])) == "\nO\n"
    renderer = Renderer(SentencePiece())
    assert text(renderer.bridge([Message("continuation", "O")], [65])) == "\nO\n"
    assert text(renderer.bridge([user("O")], [65])).startswith("<|im_end|>\n<|im_start|>user")


def test_an_observation_may_contain_the_words_that_the_renderer_searches() -> None:
    renderer = Renderer(ByteTokenizer())
    words = "gem7spoken < gem7spoken7 gem7said"
    assert f"user\n{words}<|im_end|>" in text(renderer.bridge([user(words)], [END]))


class Reasoning(ByteTokenizer):
    """Opens the thinking in the generation prompt, as DeepSeek-R1's template does."""

    def apply_chat_template(self, conversation: Any, **kwargs: Any) -> str:  # type: ignore[override]
        opened = "<think>\n" if kwargs.get("add_generation_prompt") else ""
        return super().apply_chat_template(conversation, **kwargs) + opened


@pytest.mark.parametrize("mode", ["append", "template"])
def test_an_action_begins_with_the_thinking_that_its_prompt_opened(mode: Any) -> None:
    line = "hm</think> 5"
    conversation = Conversation(Renderer(Reasoning(), mode))
    conversation.begin([user("T")])
    ids = ByteTokenizer().encode(line, add_special_tokens=False)
    assert conversation.decode(ids) == "<think>\n" + line
    assert conversation.decode([]) == ""
    conversation.act(ids, conversation.decode(ids))
    conversation.say([user("O")])
    assert conversation.decode(ids) == "<think>\n" + line
    if mode == "append":
        conversation.say([Message("continuation", "O")])
        assert conversation.decode(ids) == line, "a continuation does not open it again"
    conversation.rewrite([user("T")])
    assert conversation.decode(ids) == "<think>\n" + line
    assert Conversation(Renderer(ByteTokenizer())).decode(ids) == line


def test_template_arguments_reach_the_template() -> None:
    seen: list[Any] = []

    class Recording(ByteTokenizer):
        def apply_chat_template(self, conversation: Any, **kwargs: Any) -> str:  # type: ignore[override]
            seen.append(kwargs.pop("enable_thinking", None))
            return super().apply_chat_template(conversation, **kwargs)

    Renderer(Recording(), template_kwargs={"enable_thinking": False}).start([user("T")])
    assert set(seen) == {False}


def test_decode_omits_special_tokens() -> None:
    assert Renderer(ByteTokenizer()).decode([256, 65, 0xC3, 0xA9, END]) == "Aé"


class Counting(ByteTokenizer):
    """Counts the characters that it encodes."""

    encoded = 0

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        self.encoded += len(text)
        return super().encode(text, add_special_tokens=add_special_tokens)


@pytest.mark.parametrize("style", ["chatml", "thinking"])
def test_template_mode_encodes_every_message_once(style: str) -> None:
    tokenizer = Counting(style)
    conversation = Conversation(Renderer(tokenizer, "template"))
    conversation.begin([user("T")])
    tokenizer.encoded, messages = 0, [user("T")]
    for turn in range(50):
        line, observation = f"<think>hm {turn}</think>\n\n<|im_start|>5", user(f"{turn} " * 40)
        acted(conversation, line)
        conversation.say([observation])
        messages += [Message("assistant", line), observation]
        rendered = tokenizer.apply_chat_template(
            [m.as_dict() for m in messages], add_generation_prompt=True
        )
        assert conversation.ids == ByteTokenizer().encode(rendered, add_special_tokens=False)
    assert tokenizer.encoded < 3 * len(rendered)


class LeftStrip(ByteTokenizer):
    """Special tokens take the blanks before them, as those with `lstrip` do."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        for special in ("<|im_start|>", "<|im_end|>"):
            text = re.sub(rf"\s+{re.escape(special)}", special, text)
        return super().encode(text, add_special_tokens=add_special_tokens)


def test_template_mode_is_exact_for_tokens_that_take_blanks() -> None:
    tokenizer = LeftStrip()
    conversation = Conversation(Renderer(tokenizer, "template"))
    conversation.begin([user("T ")])
    acted(conversation, "a ")
    conversation.say([user("O ")])
    messages = [user("T "), Message("assistant", "a "), user("O ")]
    rendered = tokenizer.apply_chat_template(
        [m.as_dict() for m in messages], add_generation_prompt=True
    )
    assert conversation.ids == tokenizer.encode(rendered, add_special_tokens=False)
