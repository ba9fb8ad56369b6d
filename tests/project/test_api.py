"""The public names: there, sorted, documented, and light to import."""

from __future__ import annotations

import importlib
import inspect
import os
import pkgutil
import subprocess
import sys

import pytest
from project import ROOT

import gem_core

HEAVY = ("torch", "numpy", "transformers", "httpx", "ray", "verl", "trl", "openrlhf", "oat", "RL2", "vllm")
PROGRAMS = ("gem_core.__main__", "gem_tools.sandbox.worker")
"""Run, and not imported: they have no public names."""
MODULES = sorted(m.name for m in pkgutil.walk_packages(gem_core.__path__, "gem_core.") if m.name not in PROGRAMS)


def importable(name: str) -> bool:
    """Not so where a module needs a package of an extra at its top."""
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True


@pytest.mark.parametrize("name", ["gem_core", *MODULES])
def test_all_lists_what_is_there_sorted(name: str) -> None:
    if not importable(name):
        source = (ROOT / f"{name.replace('.', '/')}.py").read_text()
        assert "__all__" in source
        return
    module = importlib.import_module(name)
    assert module.__doc__, "the first line of a module says what its noun is"
    if name.rpartition(".")[2].startswith("_"):
        return
    public = list(module.__all__)
    assert len(public) == len(set(public))
    plain = lambda n: (not n.isupper(), not n[:1].isupper(), n)  # noqa: E731 - constants, classes, functions, as ruff sorts
    assert public in (sorted(public, key=plain), sorted(public))
    for one in public:
        assert hasattr(module, one), f"{name}.__all__ names {one}, which is not there"


@pytest.mark.parametrize("name", ["gem_core", *MODULES])
def test_everything_public_is_documented(name: str) -> None:
    if not importable(name):
        return
    module = importlib.import_module(name)
    for public in getattr(module, "__all__", ()):
        value = getattr(module, public)
        if not (inspect.isclass(value) or inspect.isfunction(value)) or not value.__module__.startswith("gem_core"):
            continue
        assert (value.__doc__ or "").strip(), f"{name}.{public} has no docstring"
        described = inspect.isclass(value) and not getattr(value, "_is_protocol", False)
        for method_name, method in vars(value).items() if described else ():
            if method_name.startswith("_") or not inspect.isfunction(method):
                continue
            documented = any((getattr(vars(base).get(method_name), "__doc__", None) or "").strip() for base in value.__mro__)
            assert documented, f"{name}.{public}.{method_name} has no docstring, and neither has what it overrides"


def test_importing_the_core_imports_nothing_heavy() -> None:
    """Invariant 7. In a process of its own, where nothing was imported before; making and playing a game included."""
    code = f"""
import sys
import gem_core
from gem_core import RandomPlayer, list_envs, make, run_batch, tasks_for
from gem_core.adapter_kit.declaration import adapters
adapters.all()
list_envs()
run_batch(tasks_for("game:GuessTheNumber-v0", range(2)), RandomPlayer())
print([m for m in {HEAVY!r} if m in sys.modules])
"""
    path = os.pathsep.join([str(ROOT), str(ROOT / "adapters")])
    env = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.stdout.strip().splitlines()[-1:] == ["[]"], done.stderr


def test_the_errors_are_one_tree_drawn_in_its_docstring() -> None:
    from gem_core import errors

    assert errors.__doc__ is not None
    for name in errors.__all__:
        kind = getattr(errors, name)
        assert issubclass(kind, errors.GemError)
        assert name in errors.__doc__
        bases = [b.__name__ for b in kind.__mro__ if b.__module__ == "builtins" and b not in (Exception, BaseException, object)]
        if bases:
            assert any(f"{name} ({base})" in errors.__doc__ for base in bases), f"{name} is drawn without its built-in {bases}"


def test_errors_travel_between_processes() -> None:
    import pickle

    from gem_core.errors import MissingDependencyError, UnknownNameError

    for error in (UnknownNameError("wrapper", "conct", ("concat",), "hint"), MissingDependencyError("x", "y", "z")):
        assert str(pickle.loads(pickle.dumps(error))) == str(error)
