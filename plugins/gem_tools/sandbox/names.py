"""Names: what a program of the sandbox keeps for the next call, as in an interactive session.

Like the worker, it runs in another interpreter, which has only the standard library. All values are
pickled together, so objects that names share stay shared. Functions are kept as bytecode, classes
as their attributes. Of the code of earlier calls, only the methods that pickle needs run again:
`__new__`, `__setstate__`, `__hash__`, `__eq__`, and what `__reduce__` names. cloudpickle gives a
function globals of its own, so it would not see what later calls assign.
"""

from __future__ import annotations

import abc
import contextlib
import copyreg
import enum
import functools
import importlib
import importlib.machinery
import io
import marshal
import pickle
import sys
import types

TYPE_CHECKING = False  # importing typing would take longer than the rest
if TYPE_CHECKING:
    from typing import Any

__all__ = ["keep", "restore"]

NAME = "<python>"
"""The file name of the model's code in tracebacks."""
_program, _path, _loaded = sys.modules["__main__"], list(sys.path), frozenset(sys.modules)
"""The program's module, and the search path and modules of a new worker: no program has run yet."""
_hooks: list[tuple[Any, Any]] = []
"""Classes and their `__init_subclass__`, which must not run for the classes that `load` builds."""


def restore(state: bytes, names: dict[str, Any]) -> None:
    """Set the names that an earlier call kept."""
    try:
        names.update(load(state) if state else {})
    except BaseException as error:  # noqa: BLE001 - code of an earlier call may raise anything
        sys.stderr.write(f"The names of earlier calls are lost: {type(error).__name__}: {error}\n")


def keep(names: dict[str, Any]) -> tuple[bytes, list[str]]:
    """Return the names as bytes for a later call, and the names that cannot be kept."""
    own = {*vars(types.ModuleType("__main__")), "__builtins__"}
    values = {name: value for name, value in names.items() if name not in own}
    lost: list[str] = []
    # The check in `dump` may call `__setstate__` and `__del__` of copies.
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        kept = dump(values)
        if kept is None:
            lost = [name for name, value in values.items() if dump({name: value}) is None]
            kept = dump({name: value for name, value in values.items() if name not in lost})
    return (b"", list(values)) if kept is None else (kept, lost)


def dump(values: dict[str, Any]) -> bytes | None:
    """Return the values as bytes; None if that or their restoration fails."""
    file = io.BytesIO()
    try:
        sys.modules["__main__"] = _program
        Pickler(file).dump(values)
        empty = sys.modules["__main__"] = types.ModuleType("__main__")  # as in the next call
        vars(empty)["__builtins__"] = __builtins__
        load(file.getvalue())
        return file.getvalue()
    except BaseException:  # noqa: BLE001 - the report lists the names
        return None


def load(state: bytes) -> dict[str, Any]:
    """Return the values that `dump` has written."""
    _hooks.clear()
    values: dict[str, Any] = pickle.loads(state)
    for cls, hook in _hooks:
        type.__setattr__(cls, "__init_subclass__", hook)
    return values


class Pickler(pickle.Pickler):
    """A pickler that also writes modules, and the functions and classes of the model's code."""

    def reducer_override(self, value: Any) -> Any:
        """Return how to build a value, as `__reduce__` does."""
        kind: Any = type(value)
        if isinstance(value, types.ModuleType):
            _check_module(value.__name__, value)
            parts = [name for name in sys.modules if name.startswith(f"{value.__name__}.")]
            return new_module, (value.__name__, *parts)
        if isinstance(value, types.FunctionType):
            if not _is_importable(value):
                return _reduce_function(value)
            _check_module(value.__module__, sys.modules[value.__module__])
            return NotImplemented
        if isinstance(value, type):
            if _is_local(value):
                return _reduce_class(value)
            _check_module(value.__module__, sys.modules.get(value.__module__))
            return NotImplemented
        if kind is types.CodeType:
            return marshal.loads, (marshal.dumps(_without_source(value)),)
        if kind is types.CellType:
            return new, ("CellType",)  # the functions that share it set its content
        if kind is types.MappingProxyType:
            return new, ("MappingProxyType", dict(value))
        if kind in (classmethod, staticmethod):
            return kind, (value.__func__,)
        if kind is property:
            return property, (value.fget, value.fset, value.fdel, value.__doc__)
        if kind is functools.cached_property:
            return kind, (value.func,), {"attrname": value.attrname}
        if kind is functools._lru_cache_wrapper:
            return new_cache, (value.__wrapped__, value.cache_parameters()), vars(value)
        if (kind.__module__, kind.__name__) == ("typing", "TypeVar"):
            variance = {"covariant": value.__covariant__, "contravariant": value.__contravariant__}
            arguments = (value.__name__, *value.__constraints__)
            return functools.partial(kind, *arguments, bound=value.__bound__, **variance), ()
        if _is_local(kind):
            if isinstance(value, BaseException) and not _has_reduce(kind):
                return _reduce_error(value)
            return _reduce_member(value) if isinstance(value, enum.Enum) else NotImplemented
        # the streams, and constants that are compared by identity, such as dataclasses.MISSING
        for module in ("sys", kind.__module__):
            if id(value) in (names := _constants(module)):
                return getattr, (sys.modules[module], names[id(value)])
        return NotImplemented


@functools.cache
def _constants(module: str) -> dict[int, str]:
    """Return the names of a module's objects by their ids."""
    if module == "sys":
        return {id(getattr(sys, name)): name for name in ("__stdin__", "__stdout__", "__stderr__")}
    if module == "builtins" or module not in sys.modules:
        return {}
    return {id(value): name for name, value in vars(sys.modules[module]).items()}


def _check_module(name: str, module: Any) -> None:
    """Raise if a new worker would not import this module, for example a file of the program."""
    top, _, part = name.partition(".")
    file = getattr(getattr(module, "__spec__", None), "origin", None)
    if top in _loaded or file in ("built-in", "frozen"):
        return
    spec = importlib.machinery.PathFinder.find_spec(top, _path)
    if spec is not None:
        folders = tuple(spec.submodule_search_locations or ())
        if (file is None or file.startswith(folders)) if part else file == spec.origin:
            return
    raise pickle.PicklingError(f"a new worker cannot import {name}")


def _is_local(cls: type) -> bool:
    """Whether no module has the class."""
    return cls.__module__ == "__main__" or "<locals>" in cls.__qualname__


def _has_reduce(cls: type) -> bool:
    """Whether Python code, not the interpreter, defines how to pickle the objects of a class."""
    methods = (cls.__reduce__, cls.__reduce_ex__)
    return any(isinstance(method, types.FunctionType) for method in methods)


def _is_importable(function: types.FunctionType) -> bool:
    """Whether a module other than the model's program has the function."""
    value: Any = sys.modules.get(function.__module__)
    for name in function.__qualname__.split("."):
        value = getattr(value, name, None)
    return value is function and function.__module__ != "__main__"


def _reduce_function(function: types.FunctionType) -> Any:
    scope: Any = function.__globals__
    for name in ("__main__", scope.get("__name__")):
        if name in sys.modules and vars(sys.modules[name]) is scope:
            _check_module(name, sys.modules[name])
            scope = name
            break
    # From Python 3.14 on, a function computes the annotations.
    annotations = "__annotate__" if getattr(function, "__annotate__", None) else "__annotations__"
    names = ("__defaults__", "__kwdefaults__", "__doc__", "__module__", "__qualname__")
    attributes = {name: getattr(function, name) for name in (*names, annotations)}
    contents: list[tuple[Any, ...]] = []
    for cell in function.__closure__ or ():
        try:
            contents.append((cell.cell_contents,))
        except ValueError:  # it is empty
            contents.append(())
    made_of = (function.__code__, scope, function.__name__, function.__closure__)
    state = (attributes, vars(function), contents)
    return new_function, made_of, state, None, None, set_function


def _without_source(code: types.CodeType) -> types.CodeType:
    """Return the code under another file name: a traceback would show lines of the wrong call."""
    constants = (_without_source(c) if isinstance(c, types.CodeType) else c for c in code.co_consts)
    name = "<earlier>" if code.co_filename == NAME else code.co_filename
    return code.replace(co_filename=name, co_consts=tuple(constants))


def _reduce_class(cls: type) -> Any:
    made_by_type = (types.GetSetDescriptorType, types.MemberDescriptorType)
    attributes = {
        name: value
        for name, value in vars(cls).items()
        if not isinstance(value, made_by_type) and name != "_abc_impl"
    }
    names = ("__slots__", "__orig_bases__")
    needed = {name: attributes.pop(name) for name in names if name in attributes}
    needed = {"__qualname__": cls.__qualname__, **needed}
    made_of = (type(cls), cls.__name__, cls.__bases__, needed)
    return new_class, made_of, attributes, None, None, set_class


def _reduce_member(member: Any) -> Any:
    """Reduce a member of an Enum to its attributes: its class is built before it has members."""
    base = type(member)._member_type_
    made_of = (type(member), base, None if base is object else member._value_)
    return copyreg._reconstructor, made_of, vars(member)  # type: ignore[attr-defined]


def _reduce_error(error: BaseException) -> Any:
    """Reduce an exception to its arguments and attributes, without `__init__` of its class.

    `__init__` may take other arguments than those that it passes to the built-in base class.
    """
    base: Any = type(error)
    while base.__module__ != "builtins":
        base = base.__base__
    reduced: Any = error.__reduce__()
    _, arguments, *state = reduced
    attributes = dict(state[0]) if state else {}
    for name in copyreg._slotnames(type(error)):  # type: ignore[attr-defined]
        if hasattr(error, name):
            attributes[name] = getattr(error, name)
    return new_error, (base, type(error), arguments), attributes or None


def new_module(name: str, *parts: str) -> types.ModuleType:
    for part in parts:
        with contextlib.suppress(ImportError):  # an alias, such as os.path
            importlib.import_module(part)
    return importlib.import_module(name)


def new_function(code: Any, scope: Any, name: str, closure: Any) -> types.FunctionType:
    scope = vars(new_module(scope)) if isinstance(scope, str) else scope
    return types.FunctionType(code, scope, name, None, closure)


def set_function(function: types.FunctionType, state: Any) -> None:
    attributes, own, contents = state
    for name, value in attributes.items():
        setattr(function, name, value)
    vars(function).update(own)
    for cell, content in zip(function.__closure__ or (), contents):
        if content:
            cell.cell_contents = content[0]


def new_class(metaclass: Any, name: str, bases: Any, attributes: dict[str, Any]) -> Any:
    # without the metaclass's own code, which ran when the model's code made the class
    maker = abc.ABCMeta if issubclass(metaclass, abc.ABCMeta) else type
    return maker.__new__(metaclass, name, bases, attributes)


def set_class(cls: type, attributes: dict[str, Any]) -> None:
    for name, value in attributes.items():
        if name == "__init_subclass__":
            _hooks.append((cls, value))
        else:
            type.__setattr__(cls, name, value)


def new_error(base: Any, cls: Any, arguments: Any) -> Any:
    error = base.__new__(cls, *arguments)
    base.__init__(error, *arguments)
    return error


def new(kind: str, *arguments: Any) -> Any:
    """Create an object of a type that pickle cannot name."""
    return getattr(types, kind)(*arguments)


def new_cache(function: Any, parameters: dict[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)
