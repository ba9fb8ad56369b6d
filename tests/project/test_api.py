"""The public names of every package: listed, sorted, documented, and light to import."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import pickle
import pkgutil
import subprocess
import sys
from types import ModuleType

import pytest
from project import SOURCES

PACKAGES = ("gem_core", "gem_check", "gem_envs", "gem_eval", "gem_execution", "gem_tools")
HEAVY = (
    "torch",
    "numpy",
    "transformers",
    "httpx",
    "ray",
    "gymnasium",
    "verl",
    "trl",
    "openrlhf",
    "oat",
    "RL2",
    "vllm",
)
PROGRAMS = ("gem_core.__main__", "gem_tools.sandbox.worker")
"""Run, not imported: they have no public names."""
EXTRAS = {"gem_envs.gymnasium.to_gymnasium": "gymnasium", "gem_execution.ray_hosts": "ray"}
"""The modules that import a package of an extra at their top. The environment that installs the extra tests them."""


def modules() -> list[str]:
    """All modules, without those whose extra is missing here."""
    names = list(PACKAGES)
    for package in PACKAGES:
        names += [
            m.name
            for m in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}.")
        ]
    missing = [name for name, needed in EXTRAS.items() if importlib.util.find_spec(needed) is None]
    return sorted(set(names) - set(PROGRAMS) - set(missing))


MODULES = modules()


def own_names(module: ModuleType) -> list[str]:
    """The public classes and functions that a module itself defines."""
    defined = [n for n, v in vars(module).items() if inspect.isclass(v) or inspect.isfunction(v)]
    return [
        n
        for n in defined
        if not n.startswith("_") and vars(module)[n].__module__ == module.__name__
    ]


@pytest.mark.parametrize("name", MODULES)
def test_all_lists_what_is_there_sorted(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__doc__, "the first line of a module says what its noun is"
    if name.rpartition(".")[2].startswith("_"):
        return
    if hasattr(module, "__path__") and not own_names(module) and not hasattr(module, "__all__"):
        return  # a package that only groups modules
    public = list(module.__all__)
    assert len(public) == len(set(public))
    plain = lambda n: (not n.isupper(), not n[:1].isupper(), n)  # noqa: E731 - constants, classes, functions, as ruff sorts
    assert public in (sorted(public, key=plain), sorted(public))
    lazy = {"ToGymnasium"} if importlib.util.find_spec("gymnasium") is None else set()
    for one in set(public) - lazy:
        assert hasattr(module, one), f"{name}.__all__ names {one}, which is not there"


@pytest.mark.parametrize("name", MODULES)
def test_everything_public_is_documented(name: str) -> None:
    module = importlib.import_module(name)
    for public in getattr(module, "__all__", ()):
        value = vars(module).get(public)  # lazy names are tested in the modules that define them
        if not (
            inspect.isclass(value) or inspect.isfunction(value)
        ) or not value.__module__.startswith(PACKAGES):
            continue
        assert (value.__doc__ or "").strip(), f"{name}.{public} has no docstring"
        described = inspect.isclass(value) and not getattr(value, "_is_protocol", False)
        for method_name, method in vars(value).items() if described else ():
            if method_name.startswith("_") or not inspect.isfunction(method):
                continue
            documented = any(
                (getattr(vars(base).get(method_name), "__doc__", None) or "").strip()
                for base in value.__mro__
            )
            assert documented, (
                f"{name}.{public}.{method_name} has no docstring, and neither has what it overrides"
            )


def test_the_modules_with_extras_exist() -> None:
    for name in EXTRAS:
        assert importlib.util.find_spec(name) is not None, (
            f"EXTRAS names {name}, which is not there"
        )


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
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(SOURCES)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip().splitlines()[-1:] == ["[]"], done.stderr


def test_the_errors_are_one_tree_drawn_in_its_docstring() -> None:
    from gem_core import errors

    assert errors.__doc__ is not None
    for name in errors.__all__:
        kind = getattr(errors, name)
        assert issubclass(kind, errors.GemError)
        assert name in errors.__doc__
        bases = [
            b.__name__ for b in kind.__bases__ if b.__module__ == "builtins" and b is not Exception
        ]
        if bases:
            assert any(f"{name} ({base})" in errors.__doc__ for base in bases), (
                f"{name} is drawn without its built-in {bases}"
            )


def test_errors_travel_between_processes() -> None:
    from gem_core.errors import MissingDependencyError, UnknownNameError

    for error in (
        UnknownNameError("wrapper", "conct", ("concat",), "hint"),
        MissingDependencyError("x", "y", "z"),
    ):
        assert str(pickle.loads(pickle.dumps(error))) == str(error)
