"""Adapter declarations, and what `probe` reports about them."""

from __future__ import annotations

import ast
import configparser
import dataclasses
import importlib
import importlib.metadata
import platform
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version
from project import ROOT

from gem_core.adapter_kit.declaration import Adapter, adapters, probe, register_adapter
from gem_core.adapter_kit.versions import in_range
from gem_core.errors import ConfigError, RegistrationError

NAMES = ("oat", "openrlhf", "rl2", "skyrl", "tinker", "trl", "verl")
DECLARED: dict[str, Adapter] = {
    name: importlib.import_module(f"gem_{name}").ADAPTER for name in NAMES
}


def an_adapter(**changes: object) -> Adapter:
    """An adapter whose framework is pluggy, which is always installed."""
    facts = {
        "name": "test",
        "distribution": "pluggy",
        "import_name": "pluggy",
        "versions": ">=1",
        "python": ">=3",
    }
    return dataclasses.replace(
        DECLARED["trl"], **{**facts, "platforms": ("*",), "needs": (), "status": "ready", **changes}
    )


@pytest.mark.parametrize("name", NAMES)
def test_each_package_declares_its_adapter(name: str) -> None:
    adapter = DECLARED[name]
    assert (adapter.name, adapter.package) == (name, f"gem_{name}")
    assert in_range("0", adapter.versions) is False
    assert adapter.install[-1] == f"pip install '.[{adapter.extra}]' -c constraints/{name}.txt"


@pytest.mark.parametrize("name", NAMES)
def test_the_extra_installs_the_supported_versions(name: str) -> None:
    adapter = DECLARED[name]
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    lines = setup["options.extras_require"][adapter.extra].split("\n")
    requirements = [line.partition(";")[0].replace("[vllm]", "").strip() for line in lines]
    assert f"{adapter.distribution}{adapter.versions}" in requirements


@pytest.mark.parametrize("name", NAMES)
def test_the_readme_lists_the_supported_versions(name: str) -> None:
    adapter = DECLARED[name]
    assert (
        f"| `{adapter.distribution}{adapter.versions}` | `{adapter.python}` |"
        in (ROOT / "README.md").read_text()
    )


@pytest.mark.parametrize("name", NAMES)
def test_the_constraints_pin_a_supported_version(name: str) -> None:
    adapter = DECLARED[name]
    pins = {}
    for line in (ROOT / "constraints" / f"{name}.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            pinned, _, version = line.partition("  #")[0].strip().partition("==")
            pins[pinned.lower()] = version
    assert in_range(pins[adapter.distribution], adapter.versions)
    for needed, versions in adapter.needs:
        assert in_range(pins[needed.lower()], versions)


def test_all_declarations_have_the_same_fields_in_the_same_order() -> None:
    def fields_of(name: str) -> list[str]:
        tree = ast.parse((ROOT / "adapters" / f"gem_{name}" / "__init__.py").read_text())
        calls = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        ]
        declared = [call for call in calls if call.func.id in ("Adapter", "Capabilities")]  # type: ignore[attr-defined]
        return [str(keyword.arg) for call in declared for keyword in call.keywords]

    assert fields_of("trl")[0] == "name"
    for name in NAMES:
        assert fields_of(name) == fields_of("trl")


def test_probe_reports_a_supported_framework_as_ready() -> None:
    status = probe(an_adapter())
    assert status.installed == importlib.metadata.version("pluggy")
    assert status.supported
    assert status.missing == ()
    assert status.installable
    assert status.ready
    assert not probe(an_adapter(status="planned")).ready


def test_probe_lists_a_missing_framework() -> None:
    status = probe(
        an_adapter(
            distribution="no-such-trainer", import_name="no_such_trainer", versions=">=1.16,<2"
        )
    )
    assert status.installed is None
    assert status.missing == ("no-such-trainer>=1.16,<2",)
    assert status.installable
    assert not status.ready


def test_probe_lists_an_unsupported_version() -> None:
    status = probe(an_adapter(versions="<0.5"))
    assert status.missing == (f"pluggy<0.5 (installed: {importlib.metadata.version('pluggy')})",)
    assert not status.ready


def test_probe_lists_an_unsupported_platform_and_python() -> None:
    status = probe(
        an_adapter(
            distribution="no-such-trainer", import_name="", python="<3", platforms=("vax-*",)
        )
    )
    assert (status.python_fits, status.platform_fits) == (False, False)
    here = f"{sys.platform}-{platform.machine()}"
    assert status.missing[:2] == (
        f"Python <3 (this is {platform.python_version()})",
        f"platform vax-* (this is {here})",
    )
    assert not status.installable


def test_probe_lists_missing_undeclared_dependencies() -> None:
    status = probe(an_adapter(needs=(("no-such-queue", ">=0.1.10"), ("pluggy", "<0.5"))))
    assert status.missing == (
        "no-such-queue>=0.1.10",
        f"pluggy<0.5 (installed: {importlib.metadata.version('pluggy')})",
    )


def test_probe_finds_a_checkout_without_a_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "checked_out.py").write_text("raise RuntimeError('probing must not import')")
    (tmp_path / "only_a_folder").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    status = probe(an_adapter(distribution="checked-out", import_name="checked_out"))
    assert status.missing == ("checked-out>=1 (installed: unknown)",)
    assert (
        probe(an_adapter(distribution="only-a-folder", import_name="only_a_folder")).installed
        is None
    )


def test_register_adapter_rejects_invalid_adapters() -> None:
    with pytest.raises(
        RegistrationError, match="needs a gem_core.adapter_kit.declaration.Adapter, got 'trl'"
    ):
        register_adapter("trl")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="'about 2' is not a version specifier"):
        register_adapter(an_adapter(versions="about 2"))
    register_adapter(an_adapter())
    try:
        assert adapters.get("test").distribution == "pluggy"
        with pytest.raises(RegistrationError, match="already registered"):
            register_adapter(an_adapter())
    finally:
        adapters.remove("test")


numbers = st.lists(st.integers(0, 3), min_size=1, max_size=4).map(
    lambda parts: ".".join(map(str, parts))
)
suffixes = st.sampled_from(
    [
        "",
        "a1",
        "b2",
        "rc1",
        ".post1",
        ".dev0",
        "rc1.dev2",
        ".post2.dev1",
        "rc1.post1",
        "-1",
        "+cpu",
        ".post1+cu13",
    ]
)
versions = st.builds(lambda number, suffix: number + suffix, numbers, suffixes)
clauses = st.builds(
    lambda operator, number, suffix: operator + number + suffix,
    st.sampled_from(["==", "!=", ">=", "<=", "<", ">", "~="]),
    numbers,
    st.sampled_from(["", "", ".*"]),
)


@given(versions, st.lists(clauses, min_size=1, max_size=2))
def test_in_range_agrees_with_packaging(version: str, parts: list[str]) -> None:
    specifier = ",".join(parts)
    try:
        expected = SpecifierSet(specifier).contains(Version(version), prereleases=True)
    except InvalidSpecifier:
        with pytest.raises(ConfigError):
            [in_range(version, part) for part in parts]  # one of them is invalid
    else:
        assert in_range(version, specifier) == expected


@pytest.mark.parametrize("version", ["1.x", "one", "", "1..2"])
def test_in_range_rejects_an_invalid_version(version: str) -> None:
    with pytest.raises(ConfigError, match="is not a version"):
        in_range(version, ">=1")
