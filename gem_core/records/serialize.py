"""Serialisation: episodes as JSON data, with secrets redacted.

Values in `info`, `options` and `env_kwargs` that JSON does not support are stored under a marker.
Tuples, non-finite floats and mappings with other keys than strings are restored; anything else
becomes an `OpaqueValue` with its type and `repr`.

If a prompt or completion contains a secret, its token ids encode it. The record then has redacted
text without ids, and the episode is not trainable.
"""

from __future__ import annotations

import ast
import json
import math
import numbers
import warnings
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields, replace
from functools import cache, partial
from typing import Any

from gem_core.arguments import short
from gem_core.errors import RecordError
from gem_core.records.redact import REDACTED, Redactor
from gem_core.types import (
    Episode,
    Failure,
    FinishReason,
    Message,
    Sampling,
    StopReason,
    Turn,
    TurnStatus,
)

__all__ = [
    "VERSION",
    "OpaqueValue",
    "episode_from_json",
    "episode_to_json",
    "from_plain",
    "to_plain",
    "without_secrets",
    "wrappers_without_secrets",
]

VERSION = 1
"""The version of the record format. Readers reject higher versions."""

_MAX_DEPTH = 32
_MAX_BITS = 14_000  # Python refuses to write larger integers as text
_MAX_REPR = 10_000
_INFO_FIELDS = ("info", "final_info")
"""The mappings that environments write; users set the others."""


@dataclass(frozen=True, slots=True)
class OpaqueValue:
    """The type and `repr` of a value that JSON cannot represent."""

    type: str
    text: str
    """The `repr`, cut if very long."""


def episode_to_json(episode: Episode, redactor: Redactor | None = None) -> dict[str, Any]:
    """Return an episode as JSON data without fields at their default; redact if asked to."""
    if redactor is not None:
        episode = _without_secrets(episode, redactor)
    data = _fields(episode, redactor)
    data["turns"] = [_encode_turn(t, redactor) for t in episode.turns]
    if episode.failure is not None:
        data["failure"] = asdict(episode.failure)
    return data


def episode_from_json(data: Mapping[str, Any]) -> Episode:
    """Restore an episode from the result of `episode_to_json`."""
    try:
        values = _field_values(data, Episode)
        values["turns"] = tuple(_turn(t) for t in values["turns"])
        values["stop"] = StopReason(values["stop"])
        for name in ("options", "final_info", "env_kwargs"):
            if name in values:
                values[name] = from_plain(values[name])
        if values.get("failure") is not None:
            values["failure"] = Failure(**_field_values(values["failure"], Failure))
        return Episode(**values)
    except (TypeError, ValueError, KeyError, AttributeError, RecursionError) as error:
        if isinstance(error, RecordError):
            raise
        raise RecordError(
            f"not an episode of record version {VERSION}: {type(error).__name__}: {error}"
        ) from error


def without_secrets(value: Any, redactor: Redactor | None = None) -> Any:
    """Return data as a record would restore it: the same, with secrets redacted."""
    return from_plain(to_plain(value, redactor or Redactor()))


# Encoding.


def _encode_turn(turn: Turn, redactor: Redactor | None) -> dict[str, Any]:
    data = _fields(turn, redactor)
    data["messages"] = [[m.role, m.content] for m in turn.messages]
    if turn.sampling is not None:
        data["sampling"] = _fields(turn.sampling, redactor)
    return data


def _fields(thing: Any, redactor: Redactor | None) -> dict[str, Any]:
    """Return the fields that differ from their default as JSON data."""
    data: dict[str, Any] = {}
    for name, default in _defaults(type(thing)):  # type: ignore[arg-type] # mypy issue 11469
        value = getattr(thing, name)
        if value == default:
            continue
        if isinstance(value, tuple):
            value = list(value)
        elif isinstance(value, (TurnStatus, FinishReason, StopReason)):
            value = value.value
        elif isinstance(value, Mapping):
            value = to_plain(dict(value), redactor, info=name in _INFO_FIELDS)
        data[name] = value
    return data


@cache
def _defaults(kind: type) -> list[tuple[str, Any]]:
    """Return the name and default of each field; `MISSING`, which equals nothing, without one."""
    factories = [(f, f.default_factory) for f in fields(kind)]
    return [(f.name, f.default if make is MISSING else make()) for f, make in factories]


def _without_secrets(episode: Episode, redactor: Redactor) -> Episode:
    """Redact the texts. If the conversation contains a secret, drop the ids, which encode it."""
    texts = [
        episode.final_observation,
        *(text for t in episode.turns for text in (t.action, t.reasoning)),
        *(m.content for t in episode.turns for m in t.messages),
    ]
    turns = episode.turns
    if any(redactor.text(text) != text for text in texts):
        warnings.warn(
            f"the episode of {episode.env_id} with seed {episode.seed} contains a secret: the "
            "value of an environment variable named like a key, or a string in `secrets`. It is "
            "recorded redacted, without token ids, and cannot be trained on. "
            "Keep keys out of the output of environments and tools.",
            stacklevel=4,
        )
        turns = tuple(
            replace(
                t,
                messages=tuple(Message(m.role, redactor.text(m.content)) for m in t.messages),
                action=redactor.text(t.action),
                reasoning=redactor.text(t.reasoning),
                added_ids=(),
                action_ids=(),
                logprobs=None,
            )
            for t in turns
        )
        episode = replace(
            episode,
            turns=turns,
            trainable=False,
            final_observation=redactor.text(episode.final_observation),
        )
    failure = episode.failure
    if failure is not None:
        failure = replace(
            failure,
            message=redactor.program_text(failure.message),
            traceback=redactor.program_text(failure.traceback),
        )
    return replace(
        episode, failure=failure, wrappers=wrappers_without_secrets(episode.wrappers, redactor)
    )


def wrappers_without_secrets(wrappers: str, redactor: Redactor) -> str:
    """Redact a wrapper stack as data, where keys name secrets; return it unchanged without any."""
    for read, write in (
        (json.loads, partial(json.dumps, sort_keys=True, default=repr)),
        (ast.literal_eval, repr),
    ):
        try:
            stack = read(wrappers)
        except (ValueError, SyntaxError):  # the repr of an invalid stack can be any text
            continue
        redacted = without_secrets(stack, redactor)
        return wrappers if write(redacted) == write(stack) else str(write(redacted))
    return redactor.program_text(wrappers)


def to_plain(
    value: Any,
    redactor: Redactor | None,
    depth: int = 0,
    *,
    info: bool = False,
    parent: str = "",
    secret: bool = False,
) -> Any:
    """Return JSON data that `from_plain` restores, or an `OpaqueValue` if impossible.

    `parent` is the key of the value. `secret`: redact every string in it.
    """
    if value is None or isinstance(value, bool):
        return value
    if secret and isinstance(value, (str, bytes)):
        return REDACTED
    if isinstance(value, str):
        return redactor.program_text(value) if redactor is not None else str(value)
    if isinstance(value, numbers.Integral) and int(value).bit_length() < _MAX_BITS:
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": repr(float(value))}
    if depth < _MAX_DEPTH:
        if isinstance(value, Mapping):
            return _plain_mapping(value, redactor, depth, info, parent, secret)
        if type(value) is list or type(value) is tuple:
            if redactor is not None and parent.lower().endswith("headers"):
                secret = secret or all(type(v) in (list, tuple) and len(v) == 2 for v in value)
            items = [
                to_plain(
                    v, redactor, depth + 1, info=info, secret=secret or _is_option(before, redactor)
                )
                for before, v in zip((None, *value), value, strict=False)
            ]
            return items if type(value) is list else {"$tuple": items}
        if (
            getattr(value, "ndim", None) == 0
            and hasattr(value, "item")
            and not isinstance(value.item(), type(value))
        ):
            return to_plain(value.item(), redactor, depth + 1)  # a scalar of numpy or torch
    if not isinstance(value, OpaqueValue):
        name = f"{type(value).__module__}.{type(value).__qualname__}"
        value = OpaqueValue(name, _repr(value))
    text = redactor.program_text(value.text) if redactor is not None else value.text
    text = REDACTED if secret else text
    return {"$shown": [value.type, text]}


def _is_option(argument: Any, redactor: Redactor | None) -> bool:
    """Return whether a command-line argument is an option like `--api-key`, with its value next."""
    if redactor is None or not isinstance(argument, str):
        return False
    return argument.startswith("--") and redactor.names_secret(argument)


def _plain_mapping(
    value: Mapping[Any, Any],
    redactor: Redactor | None,
    depth: int,
    info: bool,
    parent: str,
    secret: bool,
) -> Any:
    def plain(key: Any, item: Any) -> Any:
        name = key if isinstance(key, str) else ""
        named = redactor is not None and redactor.names_secret(name, info=info, parent=parent)
        return to_plain(
            item,
            redactor,
            depth + 1,
            info=info,
            parent=name,
            secret=secret or (named and bool(name)),
        )

    if all(type(key) is str and not key.startswith("$") for key in value):
        return {
            (redactor.text(key) if redactor is not None else key): plain(key, item)
            for key, item in value.items()
        }
    return {
        "$items": [
            [to_plain(key, redactor, depth + 1, info=info), plain(key, item)]
            for key, item in value.items()
        ]
    }


def _repr(value: object) -> str:
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001 - a failing repr must not lose the episode
        text = f"<its repr raised {type(error).__name__}>"
    return text if len(text) <= _MAX_REPR else text[:_MAX_REPR] + "..."


# Decoding.


def _turn(data: Mapping[str, Any]) -> Turn:
    values = _field_values(data, Turn)
    values["messages"] = tuple(Message(role, content) for role, content in values["messages"])
    texts = [text for message in values["messages"] for text in (message.role, message.content)]
    _check_items("messages", texts, str)
    for name in ("added_ids", "action_ids", "logprobs", "versions"):
        if values.get(name) is not None:
            _check_items(name, values[name], *((int, float) if name == "logprobs" else (int,)))
            values[name] = tuple(values[name])
    if not all(map(math.isfinite, (values.get("reward") or 0.0, *(values.get("logprobs") or ())))):
        raise RecordError("a reward or logprob is not finite")
    if "info" in values:
        values["info"] = from_plain(values["info"])
    for name, enum in (("status", TurnStatus), ("finish", FinishReason)):
        if name in values:
            values[name] = enum(values[name])
    if values.get("sampling") is not None:
        sampling = _field_values(values["sampling"], Sampling)
        sampling["stop"] = tuple(sampling.get("stop", ()))
        values["sampling"] = Sampling(**sampling)
    return Turn(**values)


def _field_values(data: Mapping[str, Any], kind: type) -> dict[str, Any]:
    names = {f.name for f in fields(kind)}
    unknown = sorted(set(data) - names)
    if unknown:
        raise RecordError(
            f"{kind.__name__} has no field {unknown[0]!r} in record version {VERSION}; "
            "was it written by a newer gem?"
        )
    for name, types in _TYPES.get(kind, {}).items():
        if name in data and type(data[name]) not in types:
            expected = " or ".join(t.__name__ for t in types)
            raise RecordError(f"{name} must be {expected}, got {short(data[name])}")
    return dict(data)


def _check_items(name: str, items: Any, *types: type) -> None:
    if type(items) is not list or not set(map(type, items)) <= set(types):
        raise RecordError(f"{name} must be a list of {types[-1].__name__}, got {short(items)}")


_NUMBER = (float, int)
_TYPES: dict[type, dict[str, tuple[type, ...]]] = {
    Episode: {
        "env_id": (str,),
        "seed": (int,),
        "turns": (list,),
        "wrappers": (str,),
        "component": (str,),
        "final_observation": (str,),
        "trainable": (bool,),
        "index": (int,),
        "attempts": (int,),
        "seconds": _NUMBER,
    },
    Turn: {
        "messages": (list,),
        "action": (str,),
        "reward": (*_NUMBER, type(None)),
        "restarted": (bool,),
        "reasoning": (str,),
    },
    Failure: {"kind": (str,), "message": (str,), "where": (str,), "traceback": (str,)},
}
"""The types of fields in JSON. Other fields are checked where they are restored."""


def from_plain(value: Any) -> Any:
    """Restore a value from the result of `to_plain`."""
    if isinstance(value, list):
        return [from_plain(v) for v in value]
    if not isinstance(value, dict):
        return value
    for marker, restore in _MARKERS.items():
        if marker in value:
            return restore(value[marker])
    return {k: from_plain(v) for k, v in value.items()}


_MARKERS: dict[str, Callable[[Any], Any]] = {
    "$tuple": lambda v: tuple(from_plain(v)),
    "$float": float,
    "$items": lambda v: {from_plain(k): from_plain(item) for k, item in v},
    "$shown": lambda v: OpaqueValue(*v),
}
