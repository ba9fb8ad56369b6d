"""Answer: what the assistant message of a chat server says, and which of its fields gem ignores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gem_core.arguments import short
from gem_core.errors import PolicyError
from gem_core.types import FinishReason
from gem_eval.models.openai.function_calls import calls_as_text
from gem_eval.models.openai.server import first_choice

__all__ = ["Answer", "read_answer"]

_REASONING = ("reasoning_content", "reasoning")
"""Names of the field with the thinking: DeepSeek, SGLang and older vLLM; OpenRouter and vLLM."""
_READ = frozenset({"role", "content", "tool_calls", "function_call", "refusal", *_REASONING})
_REFUSALS = ("content_filter", "refusal")


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of a chat server."""

    text: str
    """The text, followed by the function calls as text."""
    reasoning: str
    """The thinking, if the server returns it apart from the text."""
    reasoning_field: str
    """The field of the message that has the thinking; empty for thinking in the content."""
    finish: FinishReason
    tokens: int | None
    """Sampled tokens by the server's count, thinking included."""
    ignored: tuple[str, ...]
    """Fields with content that gem does not use."""


def read_answer(answer: Any, url: str) -> Answer:
    """Read the JSON of `/v1/chat/completions`."""
    choice = first_choice(answer, url)
    message = choice.get("message")
    if not isinstance(message, Mapping):
        raise PolicyError(f"{url} answered {short(choice)}; expected a 'message'")
    content, thinking, ignored = _content(message.get("content"), url)
    field = next((f for f in _REASONING if message.get(f)), "")
    reasoning = str(message[field]) if field else thinking
    refusal = message.get("refusal")
    text = calls_as_text(content or str(refusal or ""), list(_calls(message)))
    reason = choice.get("finish_reason")
    if refusal or reason in _REFUSALS:
        finish = FinishReason.REFUSED
    elif reason == "length":
        finish = FinishReason.LENGTH
    else:
        finish = FinishReason.STOP if text else FinishReason.EMPTY
    ignored += [f"message.{name}" for name in message if name not in _READ and message[name]]
    if len(answer["choices"]) > 1:
        ignored.append(f"all but the first of {len(answer['choices'])} choices")
    return Answer(text, reasoning, field, finish, _completion_tokens(answer), tuple(ignored))


def _content(content: Any, url: str) -> tuple[str, str, list[str]]:
    """Return the text, the thinking, and the kinds of parts that are neither."""
    if content is None or isinstance(content, str):
        return content or "", "", []
    if not isinstance(content, list):
        raise PolicyError(f"{url} answered with the content {short(content)}; expected text")
    texts, thoughts, ignored = [], [], []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind == "text":
            texts.append(str(part.get("text") or ""))
        elif kind in ("thinking", "reasoning"):
            thoughts.append(_thinking(part.get(kind) or part.get("text")))
        else:
            ignored.append(f"a content part of type {kind!r}")
    return "".join(texts), "\n".join(thoughts), ignored


def _thinking(value: Any) -> str:
    """Return a thinking part as text; Mistral nests text parts in it."""
    if isinstance(value, list):
        return "".join(str(part.get("text") or "") for part in value if isinstance(part, Mapping))
    return str(value or "")


def _calls(message: Mapping[str, Any]) -> Iterator[Any]:
    calls = message.get("tool_calls")
    yield from calls if isinstance(calls, list) else ()
    if message.get("function_call"):  # the form before `tool_calls`
        yield {"function": message["function_call"]}


def _completion_tokens(answer: Mapping[str, Any]) -> int | None:
    usage = answer.get("usage")
    count = usage.get("completion_tokens") if isinstance(usage, dict) else None
    return count if isinstance(count, int) and count >= 0 else None
