"""Tests of docs/coverage.md: what it names exists."""

from __future__ import annotations

import re

from project import ROOT

from gem_core.adapter_kit.declaration import adapters
from gem_core.cli import commands
from gem_core.env.registry import environments, list_envs
from gem_core.env.wrapper_stack import wrappers
from gem_core.training.advantage import estimators

TEXT = (ROOT / "docs" / "coverage.md").read_text(encoding="utf-8")
NAMED = re.findall(r"`([^`]+)`", TEXT)
ID = re.compile(r"[a-z]+:[\w*-]+")


def test_every_id_and_pattern_exists() -> None:
    ids = [name for name in NAMED if ID.fullmatch(name)]
    assert len(ids) > 25
    assert [id for id in ids if not list_envs(id)] == []
    assert [id for id in ids if "*" not in id and id not in environments.all()] == []


def test_every_namespace_is_covered() -> None:
    namespaces = {id.partition(":")[0] for id in environments.all()}
    named = {id.partition(":")[0] for id in NAMED if ID.fullmatch(id)}
    assert namespaces - named == {"openenv", "textworld"}  # in neither paper


def test_every_command_wrapper_estimator_adapter_and_file_exists() -> None:
    for name in NAMED:
        if name.startswith("gem-rl "):
            assert name.split()[1] in commands.all(), name
        elif name.startswith("examples/"):
            assert (ROOT / name).is_file(), name
        elif re.fullmatch(r"[a-z_0-9+]+", name):
            known = {*wrappers.all(), *estimators.all(), *adapters.all()}
            assert name in known, name
