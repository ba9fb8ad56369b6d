"""Tests of the public names of every package: listed, sorted, documented, and light to import."""

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

PACKAGES = (
    "gem_core",
    "gem_check",
    "gem_conformance",
    "gem_envs",
    "gem_eval",
    "gem_execution",
    "gem_http",
    "gem_new",
    "gem_tools",
)
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
"""Modules that are run, not imported, and have no public names."""
EXTRAS = {
    "gem_envs.gymnasium.to_gymnasium": "gymnasium",
    "gem_envs.mcp_suite.postgres": "psycopg",
    "gem_envs.mcp_suite.postgres_server": "psycopg",
    "gem_envs.mcp_suite.servers.files": "mcp",
    "gem_envs.mcp_suite.servers.postgres": "psycopg",
    "gem_envs.mcp_suite.servers.sqlite": "mcp",
    "gem_envs.mcp_suite.servers.workplace": "mcp",
    "gem_execution.ray_hosts": "ray",
}
"""Modules that need the package of an extra at import; tested where it is installed."""


def modules() -> list[str]:
    """Return all modules except those whose extra is not installed."""
    names = list(PACKAGES)
    for package in PACKAGES:
        names += [
            m.name
            for m in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}.")
        ]
    missing = [name for name, extra in EXTRAS.items() if importlib.util.find_spec(extra) is None]
    return sorted(set(names) - set(PROGRAMS) - set(missing))


MODULES = modules()


def own_names(module: ModuleType) -> list[str]:
    """Return the public classes and functions that a module itself defines."""
    defined = [n for n, v in vars(module).items() if inspect.isclass(v) or inspect.isfunction(v)]
    return [
        n
        for n in defined
        if not n.startswith("_") and vars(module)[n].__module__ == module.__name__
    ]


@pytest.mark.parametrize("name", MODULES)
def test_all_is_sorted_and_its_names_exist(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__doc__, "a module needs a docstring"
    if name.rpartition(".")[2].startswith("_"):
        return
    if hasattr(module, "__path__") and not own_names(module) and not hasattr(module, "__all__"):
        return  # a package that only groups modules
    public = list(module.__all__)
    assert len(public) == len(set(public))
    # ruff's order: constants, classes, functions
    by_kind = sorted(public, key=lambda n: (not n.isupper(), not n[:1].isupper(), n))
    assert public in (by_kind, sorted(public))
    lazy = {"ToGymnasium"} if importlib.util.find_spec("gymnasium") is None else set()
    for one in set(public) - lazy:
        assert hasattr(module, one), f"{name}.__all__ names {one}, which does not exist"


@pytest.mark.parametrize("name", MODULES)
def test_every_public_name_has_a_docstring(name: str) -> None:
    module = importlib.import_module(name)
    for public in getattr(module, "__all__", ()):
        value = vars(module).get(public)  # lazy names are tested in the modules that define them
        if not (inspect.isclass(value) or inspect.isfunction(value)):
            continue
        if not value.__module__.startswith(PACKAGES):
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
            assert documented, f"{name}.{public}.{method_name} has no docstring"


def test_modules_named_in_extras_exist() -> None:
    for name in EXTRAS:
        assert importlib.util.find_spec(name) is not None, f"{name} does not exist"


def test_using_the_core_imports_no_heavy_package() -> None:
    """Invariant 7: import, list and play in a new process."""
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


def test_errors_docstring_draws_the_complete_tree() -> None:
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
            drawn = any(f"{name} ({base})" in errors.__doc__ for base in bases)
            assert drawn, f"the docstring draws {name} without its built-in {bases}"


def test_errors_can_be_pickled() -> None:
    from gem_core.errors import MissingDependencyError, UnknownNameError

    for error in (
        UnknownNameError("wrapper", "conct", ("concat",), "hint"),
        MissingDependencyError("x", "y", "z"),
    ):
        assert str(pickle.loads(pickle.dumps(error))) == str(error)
