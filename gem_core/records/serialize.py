"""Plain: episodes as JSON data, and any plain data without the secrets in it.

Values in `info`, `options` and `env_kwargs` that JSON lacks are kept under a marker: a tuple, a float that is no number, a
mapping whose keys are no strings come back as they were; anything else comes back as a `OpaqueValue`, its type and its `repr`.

A `Redactor` (`gem_core.records.redact`) removes secrets. If the prompt or the completion contains one, its token ids would spell
it, so the text is redacted, the ids are dropped, and the episode is no longer trainable.
"""

from __future__ import annotations

import ast
import json
import math
import numbers
import warnings
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields, replace
from functools import partial
from typing import Any

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
"""Of this form of episodes. Readers refuse a higher one."""

_DEEPEST = 32
_LONGEST = 10_000
_INFOS = ("info", "final_info")
"""What environments say. All other mappings are what somebody set."""


@dataclass(frozen=True, slots=True)
class OpaqueValue:
    """What is left in a record of a value that JSON cannot hold."""

    type: str
    text: str
    """Its `repr`, cut where it is very long."""


def episode_to_json(episode: Episode, redactor: Redactor | None = None) -> dict[str, Any]:
    """An episode as plain JSON data; fields that hold their default are left out. Redacts nothing without a redactor."""
    if redactor is not None:
        episode = _without_secrets(episode, redactor)
    data = _fields(episode, redactor)
    data["turns"] = [_encode_turn(t, redactor) for t in episode.turns]
    if episode.failure is not None:
        data["failure"] = asdict(episode.failure)
    return data


def episode_from_json(data: Mapping[str, Any]) -> Episode:
    """The episode `episode_to_json` was given."""
    try:
        known = _known(data, Episode)
        known["turns"] = tuple(_turn(t) for t in known["turns"])
        known["stop"] = StopReason(known["stop"])
        for name in ("options", "final_info", "env_kwargs"):
            if name in known:
                known[name] = from_plain(known[name])
        if known.get("failure") is not None:
            known["failure"] = Failure(**_known(known["failure"], Failure))
        return Episode(**known)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        if isinstance(error, RecordError):
            raise
        raise RecordError(
            f"this is no episode of record version {VERSION}: {type(error).__name__}: {error}"
        ) from error


def without_secrets(value: Any, redactor: Redactor | None = None) -> Any:
    """What a record would give back of plain data: the same, less the secrets. For what is written beside a record."""
    return from_plain(to_plain(value, redactor or Redactor()))


# Encoding.


def _encode_turn(turn: Turn, redactor: Redactor | None) -> dict[str, Any]:
    data = _fields(turn, redactor)
    data["messages"] = [[m.role, m.content] for m in turn.messages]
    if turn.sampling is not None:
        data["sampling"] = _fields(turn.sampling, redactor)
    return data


def _fields(thing: Any, redactor: Redactor | None) -> dict[str, Any]:
    """The fields that differ from their default, tuples as lists, enums as their value; mappings may hold anything."""
    data: dict[str, Any] = {}
    for field in fields(thing):
        value = getattr(thing, field.name)
        if (field.default is not MISSING and value == field.default) or (
            field.default_factory is not MISSING and not value
        ):
            continue
        if isinstance(value, Mapping):
            value = to_plain(dict(value), redactor, info=field.name in _INFOS)
        elif isinstance(value, (TurnStatus, FinishReason, StopReason)):
            value = value.value
        elif isinstance(value, tuple):
            value = list(value)
        data[field.name] = value
    return data


def _without_secrets(episode: Episode, redactor: Redactor) -> Episode:
    """Texts without secrets. Ids would spell a secret that was shown to the model or sampled by it, so they go with it."""
    spoken = [
        episode.final_observation,
        *(t.action for t in episode.turns),
        *(m.content for t in episode.turns for m in t.messages),
    ]
    turns = episode.turns
    if any(redactor.text(text) != text for text in spoken):
        warnings.warn(
            f"the episode of {episode.env_id} with seed {episode.seed} shows the value of an environment variable that is named "
            "like a key, or of a secret the writer was told: it is recorded redacted, without token ids, and cannot be trained "
            "from. Keep keys out of what environments and tools print.",
            stacklevel=4,
        )
        turns = tuple(
            replace(
                t,
                messages=tuple(Message(m.role, redactor.text(m.content)) for m in t.messages),
                action=redactor.text(t.action),
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
            message=redactor.said(failure.message),
            traceback=redactor.said(failure.traceback),
        )
    return replace(
        episode, failure=failure, wrappers=wrappers_without_secrets(episode.wrappers, redactor)
    )


def wrappers_without_secrets(wrappers: str, redactor: Redactor) -> str:
    """As data, in which a secret is known by the name it stands under; the text stays as it is where there is none."""
    for read, write in (
        (json.loads, partial(json.dumps, sort_keys=True, default=repr)),
        (ast.literal_eval, repr),
    ):
        try:
            stack = read(wrappers)
        except (
            ValueError,
            SyntaxError,
        ):  # a stack that could not be made is a `repr`, which may hold anything
            continue
        kept = without_secrets(stack, redactor)
        return wrappers if write(kept) == write(stack) else str(write(kept))
    return redactor.said(wrappers)


def to_plain(value: Any, redactor: Redactor | None, depth: int = 0, *, info: bool = False) -> Any:
    """Plain JSON data that `from_plain` brings back, or a marked string form where that cannot be had."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return redactor.said(value) if redactor is not None else str(value)
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": repr(float(value))}
    if depth < _DEEPEST:
        if isinstance(value, Mapping):
            return _plain_mapping(value, redactor, depth, info)
        if type(value) is list:
            return [to_plain(v, redactor, depth + 1, info=info) for v in value]
        if type(value) is tuple:
            return {"$tuple": [to_plain(v, redactor, depth + 1, info=info) for v in value]}
        if (
            getattr(value, "ndim", None) == 0
            and hasattr(value, "item")
            and not isinstance(value.item(), type(value))
        ):
            return to_plain(
                value.item(), redactor, depth + 1
            )  # a scalar of numpy or torch, which need not be installed here
    shown = (
        value
        if isinstance(value, OpaqueValue)
        else OpaqueValue(f"{type(value).__module__}.{type(value).__qualname__}", _repr(value))
    )
    return {
        "$shown": [shown.type, redactor.said(shown.text) if redactor is not None else shown.text]
    }


def _plain_mapping(
    value: Mapping[Any, Any], redactor: Redactor | None, depth: int, info: bool
) -> Any:
    def kept(key: Any, item: Any) -> Any:
        if redactor is not None and isinstance(key, str) and isinstance(item, (str, bytes)):
            return (
                REDACTED
                if redactor.names_secret(key, info=info)
                else to_plain(item, redactor, depth + 1, info=info)
            )
        return to_plain(item, redactor, depth + 1, info=info)

    if all(type(key) is str and not key.startswith("$") for key in value):
        return {
            (redactor.text(key) if redactor is not None else key): kept(key, item)
            for key, item in value.items()
        }
    return {
        "$items": [
            [to_plain(key, redactor, depth + 1, info=info), kept(key, item)]
            for key, item in value.items()
        ]
    }


def _repr(value: object) -> str:
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001 - a repr that fails must not cost the episode
        text = f"<its repr raised {type(error).__name__}>"
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "..."


# Decoding.


def _turn(data: Mapping[str, Any]) -> Turn:
    known = _known(data, Turn)
    known["messages"] = tuple(Message(role, content) for role, content in known["messages"])
    for name in ("added_ids", "action_ids", "logprobs", "versions"):
        if known.get(name) is not None:
            known[name] = tuple(known[name])
    if "info" in known:
        known["info"] = from_plain(known["info"])
    for name, enum in (("status", TurnStatus), ("finish", FinishReason)):
        if name in known:
            known[name] = enum(known[name])
    if known.get("sampling") is not None:
        sampling = _known(known["sampling"], Sampling)
        sampling["stop"] = tuple(sampling.get("stop", ()))
        known["sampling"] = Sampling(**sampling)
    return Turn(**known)


def _known(data: Mapping[str, Any], kind: type) -> dict[str, Any]:
    names = {f.name for f in fields(kind)}
    unknown = sorted(set(data) - names)
    if unknown:
        raise RecordError(
            f"{kind.__name__} has no field {unknown[0]!r} in record version {VERSION}; was it written by a newer gem?"
        )
    return dict(data)


def from_plain(value: Any) -> Any:
    """What `to_plain` was given."""
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
