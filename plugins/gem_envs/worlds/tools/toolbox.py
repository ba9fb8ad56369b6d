"""Toolbox: functions that a model may call, with checked arguments, over the data of an episode."""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar, get_type_hints

from gem_core.errors import GemError
from gem_core.wrappers.formats import without_surrogates

__all__ = ["CallError", "Toolbox", "function", "parse_call", "write_call"]

_CALL = re.compile(r"\s*([A-Za-z_]\w{0,60})\s*with\s+Action\s+Input:\s*(.*)", re.DOTALL)
_LONGEST_INPUT = 4000
_MAX_DEPTH = 20
_LARGEST = 10**15
_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", list: "array"}
_Function = TypeVar("_Function", bound=Callable[..., Any])


class CallError(GemError, ValueError):
    """Raised for a call that cannot be executed; the message is for its author."""


def function(description: str, name: str = "") -> Callable[[_Function], _Function]:
    """Mark a method of a toolbox as a function that the model may call, by its name or another.

    The description becomes its docstring.
    """

    def mark(method: _Function) -> _Function:
        method.__doc__ = description
        method.function_name = name or method.__name__  # type: ignore[attr-defined]
        return method

    return mark


@dataclass(frozen=True)
class _Declaration:
    """What a toolbox class declares about one of its functions."""

    attribute: str
    description: str
    parameters: Mapping[str, type]
    required: frozenset[str]

    def __str__(self) -> str:
        return ", ".join(f"{name}: {_TYPES[kind]}" for name, kind in self.parameters.items())


class Toolbox:
    """The functions and the data of one episode. Subclasses mark their functions."""

    declared: ClassVar[Mapping[str, _Declaration]]

    def __init_subclass__(cls) -> None:
        cls.declared = _declarations(cls)

    def describe(self) -> str:
        """Return the functions with their parameters, one per line."""
        return "\n".join(
            f"{name}({declared}): {declared.description}"
            for name, declared in self.declared.items()
        )

    def free_functions(self) -> list[str]:
        """Return the names of the functions without parameters."""
        return [name for name, d in self.declared.items() if not d.parameters]

    def call(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Call a function; raise `CallError` if the name or an argument is wrong."""
        functions = self.declared
        if name not in functions:
            raise CallError(f"there is no function {name!r}; there are: {', '.join(functions)}")
        declared = functions[name]
        if not declared.required <= set(arguments) <= set(declared.parameters):
            raise CallError(f"{name} takes ({declared})")
        method = getattr(self, declared.attribute)
        return method(
            **{key: _as_type(key, arguments[key], declared.parameters[key]) for key in arguments}
        )

    def state(self) -> Any:
        """Return the data that a task may ask to change, as plain values."""
        return None


def _declarations(toolbox: type[Toolbox]) -> dict[str, _Declaration]:
    """Return the functions of a toolbox class by name, in the order of their definition."""
    declared = {}
    for attribute, method in vars(toolbox).items():
        if hasattr(method, "function_name"):
            hints = get_type_hints(method)
            parameters = list(inspect.signature(method).parameters.values())[1:]
            declared[method.function_name] = _Declaration(
                attribute,
                str(method.__doc__),
                {p.name: hints[p.name] for p in parameters},
                frozenset(p.name for p in parameters if p.default is p.empty),
            )
    return declared


def _as_type(name: str, value: Any, expected: type) -> Any:
    """Return an argument as the expected type; numbers may be strings and strings numbers."""
    try:
        if expected is str and isinstance(value, (str, int, float)):
            return str(value)
        if expected in (int, float) and not isinstance(value, (bool, list, dict, type(None))):
            number = float(value)
            if abs(number) < 1e15 and (expected is float or number.is_integer()):
                return expected(number)
        if expected in (bool, list) and isinstance(value, expected):
            return value
    except (ValueError, OverflowError):  # an integer of 400 digits does not fit a float
        pass
    raise CallError(f"{name} must be of the type {_TYPES[expected]}")


def parse_call(text: str) -> tuple[str, dict[str, Any]]:
    """Read `NAME with Action Input: {...}`; raise `CallError` if it is not of this form."""
    match = _CALL.fullmatch(text)
    if match is None:
        raise CallError('an action is "FUNCTION with Action Input: {"PARAMETER": VALUE}", in JSON')
    name, body = match[1], match[2].strip()
    arguments: Any = None
    if len(body) <= _LONGEST_INPUT:
        for read in (json.loads, ast.literal_eval):
            try:
                arguments = read(body)
                break
            except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
                continue
    if not isinstance(arguments, dict):
        raise CallError("the action input must be a JSON object")
    return name, _as_json(arguments)


def _as_json(value: Any, depth: int = 0) -> Any:
    """Return a parsed value with plain JSON types, and without lone surrogates."""
    if depth > _MAX_DEPTH:
        raise CallError(f"the action input must not be nested over {_MAX_DEPTH} levels deep")
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise CallError("the keys of a JSON object must be strings")
        return {without_surrogates(key): _as_json(value[key], depth + 1) for key in value}
    if isinstance(value, (list, tuple)):
        return [_as_json(item, depth + 1) for item in value]
    if isinstance(value, str):
        return without_surrogates(value)
    if isinstance(value, int) and abs(value) > _LARGEST:
        raise CallError("an integer must be between -10**15 and 10**15")
    if value is not None and not isinstance(value, (int, float)):
        raise CallError(f"the action input must be JSON, which has no such {type(value).__name__}")
    return value


def write_call(name: str, arguments: Mapping[str, Any]) -> str:
    """Return the text of a call."""
    return f"{name} with Action Input: {json.dumps(dict(arguments), ensure_ascii=False)}"
