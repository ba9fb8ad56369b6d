"""Renderer: turns messages into prompt ids without re-encoding sampled tokens.

In `append` mode (the default) the next prompt is the last prompt, the sampled ids unchanged
(thinking included), and *bridge* ids for the new messages: always one sequence. In `template`
mode the next prompt is the chat template of the whole conversation; if that rewrites the past, a
new sequence starts.

The renderer cuts a bridge from a small rendered conversation: all the text that the template
writes after an assistant message, i.e. its turn-end token, the new messages and the generation
prompt. If the model sampled the turn-end token, the bridge omits it; if the turn was cut, the
turn-end token is in the bridge, as an unsampled token.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from gem_core.errors import ConfigError, RenderError
from gem_core.rollout.chunks import Chunks, separator_of
from gem_core.types import Message, Role

__all__ = ["Added", "Conversation", "Renderer", "Tokenizer", "message_of"]

# Marks that locate a message in a rendered template.
_ASSISTANT_MARK = "gem7spoken"
_MARK = "gem7said"
# SentencePiece adds a blank to the start of every text. A bridge continues a text, so the renderer
# encodes it after this letter, which does not merge with the blank or line break after it.
_ANCHOR = "x"
_THINK = "<think>"
_PROBES = (" two  words\n\n", "a\n\nb", "x" * 300, "\t{{ x }} % 1. é \n")


class Tokenizer(Protocol):
    """The part of a transformers tokenizer that the renderer uses."""

    eos_token_id: int | None
    chat_template: Any
    all_special_ids: Any

    def encode(self, text: str, *, add_special_tokens: bool = ...) -> list[int]: ...

    def decode(self, token_ids: Any, **settings: Any) -> str: ...

    def apply_chat_template(
        self,
        conversation: Any,
        *,
        tokenize: bool = ...,
        add_generation_prompt: bool = ...,
        **kwargs: Any,
    ) -> Any: ...


def message_of(observation: str, info: Mapping[str, Any]) -> Message:
    """Return the message that shows an observation, with the `role` and `suffix` of its info."""
    suffix = info.get("suffix")
    line_end = "" if observation.endswith("\n") else "\n"
    content = f"{observation}{line_end}{suffix}" if suffix else observation
    return Message(info.get("role", "user"), content)


@dataclass(frozen=True, slots=True)
class Added:
    """What a prompt adds to the last prompt and action; the complete prompt if `restarted`."""

    ids: tuple[int, ...]
    restarted: bool
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class _Bridge:
    """The text that a template writes around one message of one role after an assistant message."""

    before: str
    after: str
    trims: bool


class Renderer:
    """Renders prompt ids with one tokenizer and template. `Conversation` has the state."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        mode: Literal["append", "template"] = "append",
        *,
        chat: bool | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        """`chat`: use the chat template, or plain text; None: use the template if there is one.

        `template_kwargs`: arguments of the template, such as {"enable_thinking": False}. Raises
        `RenderError` for a template that cannot be used token-exactly.
        """
        if mode not in ("append", "template"):
            raise ConfigError(f"mode must be 'append' or 'template', got {mode!r}")
        self.tokenizer = tokenizer
        self.mode = mode
        has_template = bool(getattr(tokenizer, "chat_template", None))
        self.chat = has_template if chat is None else chat
        if self.chat and not has_template:
            raise ConfigError(
                "chat=True, but the tokenizer has no chat template; "
                "set tokenizer.chat_template or pass chat=False"
            )
        self.template_kwargs = dict(template_kwargs or {})
        self.takes_system = self.takes_tool = not self.chat
        self._bridges: dict[str, _Bridge | None] = {}
        # Some turn-end tokens are added tokens that are not declared special.
        added: Iterable[int] = getattr(tokenizer, "get_added_vocab", dict)().values()
        self._special = frozenset([*tokenizer.all_special_ids, *added])
        self.turn_end: int | None = tokenizer.eos_token_id
        """The token that ends the model's turn."""
        self._closing: tuple[int, ...] = ()
        """The ids that end a cut turn, usually the turn-end token; bridges begin with them."""
        self._encoded: dict[str, tuple[int, ...]] = {}
        """The ids of short texts: rules and answers of an environment recur in its episodes."""
        self._anchor = self._encode(_ANCHOR)
        self._separator = ""
        """The token that begins the pieces of `chunks`."""
        self.thinking = ""
        """The `<think>` at the end of the generation prompt, as DeepSeek-R1's has; else empty."""
        if self.chat:
            self._study_template()

    def chunks(self) -> Chunks:
        """Return an encoder for the prompts of one conversation; it encodes each message once."""
        return Chunks(self._encode, self._separator)

    def start(self, messages: Sequence[Message], chunks: Chunks | None = None) -> tuple[int, ...]:
        """Return the ids of a first prompt."""
        if not self.chat:
            text = "\n".join(m.content for m in messages) + "\n"
            return tuple(self.tokenizer.encode(text, add_special_tokens=True))
        text = self._template(self._acceptable(messages))
        return self._encode(text) if chunks is None else chunks.encode(text)

    def bridge(self, messages: Sequence[Message], action: Sequence[int]) -> tuple[int, ...]:
        """Return the ids between an action and the next one, without closing ids it has sampled."""
        if not self.chat or all(m.role == "continuation" for m in messages):
            return self._encode_after("\n" + "\n".join(m.content for m in messages) + "\n")
        ids, closing = self._encode_after(self._after_action(messages)), self._closing
        if ids[: len(closing)] != closing:  # some templates close a turn before a tool differently
            sampled_first = action and ids and action[-1] == ids[0] and ids[0] in self._special
            return ids[1:] if sampled_first else ids
        for sampled in range(len(closing), 0, -1):
            if tuple(action[-sampled:]) == closing[:sampled]:
                return ids[sampled:]
        return ids[len(closing) :] if action and action[-1] == self.turn_end else ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of sampled ids, without special tokens, and with all spaces."""
        settings = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
        return self.tokenizer.decode(list(ids), **settings)

    def _template(self, messages: Iterable[Message], prompt: bool = True) -> str:
        conversation = [m.as_dict() for m in messages]
        text = self.tokenizer.apply_chat_template(
            conversation, tokenize=False, add_generation_prompt=prompt, **self.template_kwargs
        )
        return str(text)

    def _encode(self, text: str) -> tuple[int, ...]:
        ids = self._encoded.get(text)
        if ids is None:
            ids = tuple(self.tokenizer.encode(text, add_special_tokens=False))
            if len(self._encoded) < 1024 and len(text) < 4096:
                self._encoded[text] = ids
        return ids

    def _name_of(self, id: int) -> str:
        return self.tokenizer.decode([id], skip_special_tokens=False)

    def _encode_after(self, text: str) -> tuple[int, ...]:
        """Encode a text that continues another one."""
        ids, anchor = self._encode(_ANCHOR + text), self._anchor
        return ids[len(anchor) :] if ids[: len(anchor)] == anchor else self._encode(text)

    def _acceptable(self, messages: Iterable[Message]) -> list[Message]:
        """Replace unsupported roles by `user` and join neighbours of one role.

        Many templates reject two messages of one role in a row.
        """
        accepted: list[Message] = []
        for message in messages:
            role, content = message.role, message.content
            if (
                (role == "system" and not self.takes_system)
                or (role == "tool" and not self.takes_tool)
                or role == "continuation"
            ):
                role = "user"
            if accepted and accepted[-1].role == role and role != "assistant":
                accepted[-1] = Message(role, f"{accepted[-1].content}\n\n{content}")
            else:
                accepted.append(Message(role, content))
        return accepted

    def _after_action(self, messages: Sequence[Message]) -> str:
        messages = self._acceptable(messages)
        if len(messages) == 1 and "<" not in messages[0].content:
            bridge = self._bridges.get(messages[0].role)
            if bridge is not None:
                content = messages[0].content
                return bridge.before + (content.strip() if bridge.trims else content) + bridge.after
        return self._rendered_after_action(messages)

    def _rendered_after_action(
        self, messages: Sequence[Message], prompt: bool = True, history: Sequence[Message] = ()
    ) -> str:
        """Return the text that the template writes after an assistant message."""
        mark = _ASSISTANT_MARK
        while any(mark in m.content for m in messages):
            mark += "7"
        text = self._template(
            [*history, Message("user", "hello"), Message("assistant", mark), *messages], prompt
        )
        if text.count(mark) != 1:
            raise RenderError(
                f"the chat template writes an assistant message {text.count(mark)} "
                "times, not once, so no turn can be appended to it; "
                "use Renderer(tokenizer, mode='template') or another template"
            )
        return text[text.index(mark) + len(mark) :]

    def _study_template(self) -> None:
        """Find the template's abilities; raise `RenderError` if appending would not be exact."""
        self.takes_system = self._shows([Message("system", _MARK), Message("user", "hello")])
        base = [Message("user", "hello"), Message("assistant", "hello")]
        self.takes_tool = self._shows([*base, Message("tool", _MARK)])
        if not self._shows([*base, Message("user", _MARK)]):
            raise RenderError(
                "the chat template cannot render a second user message after an assistant message, "
                "which conversations of several turns need; "
                "use another template, or chat=False for plain text"
            )
        _, think, after = self._template([Message("user", "hello")]).rpartition(_THINK)
        self.thinking = think + after if not after.strip() else ""
        if self.mode == "template":
            text = self._template([*base, Message("user", "hello")])
            self._separator = separator_of(text, self._encode, self._name_of, self._special)
        roles: tuple[Role, ...] = ("user", "tool") if self.takes_tool else ("user",)
        try:
            self._study_end()
            if self.mode == "append":
                self._check_later_turns(roles)
        except RenderError:
            if self.mode == "append":  # `template` mode does not use bridges
                raise
            return
        if "strftime_now" in str(self.tokenizer.chat_template):
            return  # a bridge may contain the current time: render each one anew
        for role in roles:
            self._bridges[role] = self._study_role(Message(role, _MARK))

    def _check_later_turns(self, roles: Iterable[Role]) -> None:
        """Raise `RenderError` if the text around a message depends on the number of turns."""
        history = [Message("user", "hello"), Message("assistant", "hello")]
        for message in [Message(role, _MARK) for role in roles]:
            # A template that writes the time may write two times in two calls: compare again.
            if not any(
                self._rendered_after_action([message])
                == self._rendered_after_action([message], history=history)
                for _ in range(3)
            ):
                raise RenderError(
                    f"the chat template writes a {message.role} message differently in later "
                    "turns, for example with a round number, so appending it would not be exact; "
                    "use Renderer(tokenizer, mode='template') or another template"
                )

    def _study_end(self) -> None:
        """Find the special tokens that end a turn, both in the middle and at the end of the text.

        Cohere's template writes two. GLM's writes none; the model samples the next speaker's token.
        gpt-oss ends the last turn of a conversation with a different token than earlier turns.
        Llama 2's writes a blank before the token.
        """
        middle = self._leading_special(self._rendered_after_action([Message("user", _MARK)]))
        last = self._leading_special(self._rendered_after_action([], prompt=False))
        shared = [id for i, id in enumerate(middle) if middle[: i + 1] == last[: i + 1]]
        if not self._special.intersection(shared):
            shared = []
        first = [id for id in middle[:1] if id in self._special]
        self._closing = tuple(shared or first)
        self.turn_end = next(iter([*shared[-1:], *last[-1:], *self._closing]), self.turn_end)

    def _leading_special(self, text: str) -> list[int]:
        """Return the special tokens at the beginning of a text, with blanks before them."""
        ids = self._encode_after(text)
        words = (i for i, id in enumerate(ids) if id in self._special or self.decode([id]).strip())
        begin = next(words, len(ids))
        end = next((i for i in range(begin, len(ids)) if ids[i] not in self._special), len(ids))
        return list(ids[:end]) if end > begin else []

    def _shows(self, messages: Sequence[Message]) -> bool:
        try:
            return self._template(messages).count(_MARK) == 1
        except Exception:  # noqa: BLE001 - templates reject messages with any exception
            return False

    def _study_role(self, message: Message) -> _Bridge | None:
        """Return the text around a message, or None if it depends on the content."""
        before, mark, after = self._rendered_after_action([message]).partition(_MARK)
        if not mark:
            return None
        rendered = [self._rendered_after_action([Message(message.role, p)]) for p in _PROBES]
        for trims in (False, True):
            if rendered == [before + (p.strip() if trims else p) + after for p in _PROBES]:
                return _Bridge(before, after, trims)
        return None


class Conversation:
    """The growing prompt of one episode."""

    def __init__(self, renderer: Renderer) -> None:
        self.renderer = renderer
        self.ids: list[int] = []
        """The prompt, and the action after `act`. Read-only for callers."""
        self._messages: list[Message] = []
        self._action: tuple[int, ...] = ()
        self._chunks = renderer.chunks() if renderer.mode == "template" else None
        self._opened = renderer.thinking
        """The `<think>` that the prompt has opened for the next action."""

    def begin(self, messages: Sequence[Message]) -> Added:
        """Render the first prompt."""
        if self.renderer.mode == "template":
            self._messages = list(messages)
        self.ids = list(self.renderer.start(messages, self._chunks))
        return Added(tuple(self.ids), True, tuple(messages))

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of an action, after the `<think>` with which its prompt ends.

        Without it, a reader of the text cannot tell the thinking from the answer.
        """
        return self._opened + self.renderer.decode(ids) if ids else ""

    def act(self, ids: Sequence[int], text: str) -> None:
        """Append the sampled ids unchanged."""
        self._action = tuple(ids)
        self.ids += self._action
        if self.renderer.mode == "template":
            self._messages.append(Message("assistant", text))

    def say(self, messages: Sequence[Message]) -> Added:
        """Render the next prompt: append the messages since the last action."""
        if self.renderer.mode == "template" and self.renderer.chat:
            self._messages += messages
            return self._rendered(self._messages)
        continued = all(m.role == "continuation" for m in messages)
        self._opened = "" if continued else self.renderer.thinking
        bridge = self.renderer.bridge(messages, self._action)
        self.ids += bridge
        return Added(bridge, False, tuple(messages))

    def rewrite(self, messages: Sequence[Message]) -> Added:
        """Render the next prompt from messages that replace the conversation."""
        if self.renderer.mode == "template":
            self._messages = list(messages)
        return self._rendered(messages)

    def _rendered(self, messages: Sequence[Message]) -> Added:
        self._opened = self.renderer.thinking
        ids = self.renderer.start(messages, self._chunks)
        known = len(self.ids)
        if len(ids) > known and ids[:known] == tuple(self.ids):
            self.ids += ids[known:]
            last = max((i for i, m in enumerate(messages) if m.role == "assistant"), default=-1)
            return Added(ids[known:], False, tuple(messages[last + 1 :]))
        self.ids = list(ids)
        return Added(ids, True, tuple(messages))
