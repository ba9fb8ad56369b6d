"""Render: messages to prompt ids, so that what was sampled is never decoded and re-encoded.

`append` mode (the default): the next prompt is the last prompt, the sampled ids untouched (thinking included), and *bridge*
ids for what was said since: always one row. `template` mode: the next prompt is what the chat template makes of the whole
conversation; where that rewrites the past, the context restarts and a new row begins.

A bridge is cut out of a small rendered conversation: everything the template writes behind an assistant's words, which is
its turn-end token, the new messages and the generation prompt. If the model sampled the turn-end token itself, it is not
repeated; if the turn was cut, it stands in the bridge, as a token nobody sampled.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from gem_core.errors import ConfigError, RenderError
from gem_core.types import Message

__all__ = ["Added", "Conversation", "Renderer", "Tokenizer"]

_SPOKEN = "gem7spoken"
_SAID = "gem7said"


class Tokenizer(Protocol):
    """What is used of a tokenizer; those of transformers have it."""

    eos_token_id: int | None
    chat_template: Any
    all_special_ids: Any

    def encode(self, text: str, *, add_special_tokens: bool = ...) -> list[int]: ...

    def decode(self, token_ids: Any, *, skip_special_tokens: bool = ...) -> str: ...

    def apply_chat_template(
        self,
        conversation: Any,
        *,
        tokenize: bool = ...,
        add_generation_prompt: bool = ...,
        **kwargs: Any,
    ) -> Any: ...


@dataclass(frozen=True, slots=True)
class Added:
    """What a prompt has beyond the last prompt and action."""

    ids: tuple[int, ...]
    restarted: bool


@dataclass(frozen=True, slots=True)
class _Bridge:
    """How a template writes one message of one role behind an assistant's words."""

    before: str
    after: str
    trims: bool


class Renderer:
    """Prompt ids for one tokenizer and template. Holds no state of an episode; see `Conversation`."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        mode: Literal["append", "template"] = "append",
        *,
        chat: bool | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        """`chat`: with the tokenizer's chat template, or as plain text; None asks the tokenizer. `template_kwargs`: for the
        template, as in {"enable_thinking": False}. A template that cannot be used token-exactly is refused here."""
        if mode not in ("append", "template"):
            raise ConfigError(f"mode must be 'append' or 'template'; given: {mode!r}")
        self.tokenizer = tokenizer
        self.mode = mode
        self.chat = bool(getattr(tokenizer, "chat_template", None)) if chat is None else chat
        if self.chat and not getattr(tokenizer, "chat_template", None):
            raise ConfigError(
                "chat=True, but the tokenizer has no chat template; set tokenizer.chat_template or pass chat=False"
            )
        self.template_kwargs = dict(template_kwargs or {})
        self.takes_system = self.takes_tool = not self.chat
        self._bridges: dict[str, _Bridge | None] = {}
        added = (
            tokenizer.get_added_vocab().values() if hasattr(tokenizer, "get_added_vocab") else ()
        )
        self._special = frozenset(
            [*tokenizer.all_special_ids, *added]
        )  # some turn-end tokens are not declared special
        self.turn_end: int | None = tokenizer.eos_token_id
        """The token with which the model ends its turn."""
        self._closing: tuple[int, ...] = ()
        """What a bridge begins with, and a cut turn is closed with: the turn-end token, as a rule."""
        if self.chat:
            self._study_template()

    def start(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """The ids of a first prompt."""
        if not self.chat:
            text = "\n".join(m.content for m in messages) + "\n"
            return tuple(self.tokenizer.encode(text, add_special_tokens=True))
        return self._encode(self._template(self._acceptable(messages)))

    def bridge(self, messages: Sequence[Message], action: Sequence[int]) -> tuple[int, ...]:
        """The ids between an action and the next one; what the action itself has sampled of the turn's end is not repeated."""
        if not self.chat or all(m.role == "continuation" for m in messages):
            return self._encode("\n" + "\n".join(m.content for m in messages) + "\n")
        ids, closing = self._encode(self._behind_action(messages)), self._closing
        if (
            ids[: len(closing)] != closing
        ):  # behind a tool's turn, some templates write something else
            return ids
        for sampled in range(len(closing), 0, -1):
            if tuple(action[-sampled:]) == closing[:sampled]:
                return ids[sampled:]
        return ids[len(closing) :] if action and action[-1] == self.turn_end else ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of sampled ids, without special tokens."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=True)

    def _template(self, messages: Iterable[Message], prompt: bool = True) -> str:
        conversation = [m.as_dict() for m in messages]
        text = self.tokenizer.apply_chat_template(
            conversation, tokenize=False, add_generation_prompt=prompt, **self.template_kwargs
        )
        return str(text)

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))

    def _acceptable(self, messages: Iterable[Message]) -> list[Message]:
        """Messages in roles this template takes: neighbours of one role are joined, since many templates refuse them."""
        found: list[Message] = []
        for message in messages:
            role, content = message.role, message.content
            if (
                (role == "system" and not self.takes_system)
                or (role == "tool" and not self.takes_tool)
                or role == "continuation"
            ):
                role = "user"
            if found and found[-1].role == role and role != "assistant":
                found[-1] = Message(role, f"{found[-1].content}\n\n{content}")
            else:
                found.append(Message(role, content))
        return found

    def _behind_action(self, messages: Sequence[Message]) -> str:
        messages = self._acceptable(messages)
        if len(messages) == 1 and "<" not in messages[0].content:
            bridge = self._bridges.get(messages[0].role)
            if bridge is not None:
                content = messages[0].content
                return bridge.before + (content.strip() if bridge.trims else content) + bridge.after
        return self._cut(messages)

    def _cut(self, messages: Sequence[Message], prompt: bool = True) -> str:
        """What the template writes behind an assistant's words, rendered in a small conversation."""
        text = self._template(
            [Message("user", "hello"), Message("assistant", _SPOKEN), *messages], prompt
        )
        if text.count(_SPOKEN) != 1:
            raise RenderError(
                f"the chat template writes an assistant's words {text.count(_SPOKEN)} times, not once, so that a turn cannot be "
                "appended to; use Renderer(tokenizer, mode='template'), or another template"
            )
        return text[text.index(_SPOKEN) + len(_SPOKEN) :]

    def _study_template(self) -> None:
        """Finds out at construction what the template can do, and refuses one that appending would not be faithful to."""
        self.takes_system = self._shows([Message("system", _SAID), Message("user", "hello")])
        base = [Message("user", "hello"), Message("assistant", "hello")]
        self.takes_tool = self._shows([*base, Message("tool", _SAID)])
        if not self._shows([*base, Message("user", _SAID)]):
            raise RenderError(
                "the chat template cannot render a second user message after an assistant's; gem needs conversations of several "
                "turns. Use another template, or chat=False for plain text"
            )
        try:
            self._study_end()
        except RenderError:
            if self.mode == "append":  # the other mode never cuts the template's text
                raise
            return
        for role in ("user", "tool") if self.takes_tool else ("user",):
            self._bridges[role] = self._study_role(Message(role, _SAID))

    def _study_end(self) -> None:
        """How a turn ends: by the special tokens behind an assistant's words, whether or not something follows.

        Cohere's writes two of them. GLM's writes none, and the model samples the next speaker's. gpt-oss ends the last turn of
        a conversation with another token than those before it.
        """
        followed = self._special_run(self._cut([Message("user", _SAID)]))
        last = self._special_run(self._cut([], prompt=False))
        shared = [id for i, id in enumerate(followed) if followed[: i + 1] == last[: i + 1]]
        self._closing = tuple(shared or followed[:1])
        self.turn_end = next(iter([*shared[-1:], *last[-1:], *self._closing]), self.turn_end)

    def _special_run(self, text: str) -> list[int]:
        """The special tokens a text begins with."""
        ids = self._encode(text)
        return list(
            ids[: next((i for i, id in enumerate(ids) if id not in self._special), len(ids))]
        )

    def _shows(self, messages: Sequence[Message]) -> bool:
        try:
            return self._template(messages).count(_SAID) == 1
        except Exception:  # noqa: BLE001 - a template raises whatever its author liked; any refusal means "no"
            return False

    def _study_role(self, message: Message) -> _Bridge | None:
        """The text around a message, if it does not depend on the message; None where it does."""
        before, found, after = self._cut([message]).partition(_SAID)
        if not found:
            return None
        for trims in (False, True):
            probes = (" two  words\n\n", "a\n\nb", "x" * 300, "\t{{ x }} % 1. é \n")
            written = [before + (p.strip() if trims else p) + after for p in probes]
            if written == [self._cut([Message(message.role, p)]) for p in probes]:
                return _Bridge(before, after, trims)
        return None


class Conversation:
    """The growing prompt of one episode."""

    def __init__(self, renderer: Renderer) -> None:
        self.renderer = renderer
        self.ids: list[int] = []
        """The whole prompt, or the whole prompt and the action once it was given. Not to be changed by others."""
        self._messages: list[Message] = []
        self._action: tuple[int, ...] = ()

    def begin(self, messages: Sequence[Message]) -> Added:
        """The first prompt."""
        if self.renderer.mode == "template":
            self._messages = list(messages)
        self.ids = list(self.renderer.start(messages))
        return Added(tuple(self.ids), True)

    def act(self, ids: Sequence[int], text: str) -> None:
        """Takes the sampled ids in, as they are."""
        self._action = tuple(ids)
        self.ids += self._action
        if self.renderer.mode == "template":
            self._messages.append(Message("assistant", text))

    def say(self, messages: Sequence[Message]) -> Added:
        """The next prompt: what was said since the action."""
        if self.renderer.mode == "template" and self.renderer.chat:
            self._messages += messages
            return self._rendered(self._messages)
        bridge = self.renderer.bridge(messages, self._action)
        self.ids += bridge
        return Added(bridge, False)

    def rewrite(self, messages: Sequence[Message]) -> Added:
        """The next prompt, from a conversation that takes the place of the one so far."""
        if self.renderer.mode == "template":
            self._messages = list(messages)
        return self._rendered(messages)

    def _rendered(self, messages: Sequence[Message]) -> Added:
        ids = self.renderer.start(messages)
        known = len(self.ids)
        if len(ids) > known and ids[:known] == tuple(self.ids):
            self.ids += ids[known:]
            return Added(ids[known:], False)
        self.ids = list(ids)
        return Added(ids, True)
