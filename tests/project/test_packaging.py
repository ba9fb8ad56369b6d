"""Tests of the distribution: contents, metadata, the installed command, and light imports."""

from __future__ import annotations

import configparser
import json
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from project import ROOT, SOURCES, Installation, clean_env

ADAPTERS = ("oat", "openrlhf", "rl2", "skyrl", "tinker", "trl", "verl")
HEAVY = (
    "torch",
    "numpy",
    "transformers",
    "trl",
    "verl",
    "openrlhf",
    "oat",
    "RL2",
    "skyrl",
    "tinker",
    "ray",
    "vllm",
    "httpx",
    "matplotlib",
)


PLUGINS = (
    "gem_check",
    "gem_conformance",
    "gem_envs",
    "gem_eval",
    "gem_execution",
    "gem_http",
    "gem_new",
    "gem_tools",
)
HOMES = (ROOT, ROOT / "plugins", ROOT / "adapters")
"""The folders that contain the packages."""


def packages_in_the_tree() -> set[str]:
    tops = [(home, top) for home in HOMES for top in home.glob("gem_*") if top.is_dir()]
    return {
        ".".join(p.parent.relative_to(home).parts)
        for home, top in tops
        for p in top.rglob("__init__.py")
    }


def test_wheel_contains_every_package_and_py_typed(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    packages = {
        str(Path(name).parent).replace("/", ".") for name in names if name.endswith("/__init__.py")
    }
    assert packages == packages_in_the_tree()
    top = {package.partition(".")[0] for package in packages}
    assert top == {"gem_core", *PLUGINS, *(f"gem_{name}" for name in ADAPTERS)}
    assert all(f"{package}/py.typed" in names for package in top)


def test_wheel_metadata_names_version_requirements_and_license(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (metadata,) = (
        archive.read(n).decode() for n in archive.namelist() if n.endswith(".dist-info/METADATA")
    )
    assert "\nName: gem\n" in metadata
    assert "\nVersion: 0.2.0\n" in metadata
    assert "\nRequires-Python: >=3.10\n" in metadata
    required = [line for line in metadata.splitlines() if line.startswith("Requires-Dist: ")]
    required = [line for line in required if "extra ==" not in line]
    assert required == ["Requires-Dist: packaging>=22", "Requires-Dist: pluggy>=1.5"]
    assert any(n.endswith("/LICENSE") for n in archive.namelist())


def test_wheel_contains_all_data_files(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for home, package in ((ROOT, "gem_core"), *((ROOT / "plugins", name) for name in PLUGINS)):
        files = [p for p in (home / package).rglob("*") if p.is_file()]
        data = [p for p in files if p.suffix not in (".py", ".pyc")]
        assert {p.relative_to(home).as_posix() for p in data} - names == set()
        assert data


def test_sdist_contains_the_tests_and_their_configuration(dist: Path) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    expected = {
        "tox.ini",
        "ruff.toml",
        "LICENSE",
        "tests/conftest.py",
        "constraints/dev.txt",
        ".ci/run",
        "examples/plugin_project/setup.cfg",
        "adapters/gem_trl/__init__.py",
        "plugins/gem_envs/__init__.py",
        "tests/support/project.py",
        "tests/gem_core/env/test_base.py",
    }
    assert expected - names == set()


def test_installed_command_prints_its_version(installed: Installation) -> None:
    done = installed.command("--version")
    assert (done.returncode, done.stdout) == (0, "gem-rl 0.2.0\n")


def test_minimal_installation_lists_adapters_and_built_in_plugins(
    installed: Installation,
) -> None:
    done = installed.command("plugins", "--json")
    plugins = {p["name"]: p for p in json.loads(done.stdout)}
    assert set(ADAPTERS) <= set(plugins)
    assert {plugins[name]["origin"] for name in ADAPTERS} == {"gem 0.2.0"}
    assert all(plugins[name]["loaded"] for name in plugins)
    adapters = json.loads(installed.command("adapters", "--json").stdout)
    assert [a["name"] for a in adapters] == list(ADAPTERS)
    assert [a["installed"] for a in adapters] == [None] * len(ADAPTERS)


def test_minimal_installation_plays_a_game(installed: Installation) -> None:
    done = installed.command("play", "game:GuessTheNumber-v0-easy", "--random", "--seed", "1")
    assert done.returncode == 0, done.stderr
    assert "total reward" in done.stdout


@pytest.mark.parametrize(
    "program",
    [
        "import gem_core",
        "import gem_core.plugins.manager; gem_core.plugins.manager.load_plugins()",
        "import gem_core.__main__; gem_core.__main__.main(['adapters'])",
        "import gem_trl, gem_verl, gem_openrlhf, gem_oat, gem_rl2, gem_skyrl, gem_tinker",
    ],
)
def test_imports_load_no_heavy_package(program: str, tmp_path: Path) -> None:
    # Empty modules replace the heavy packages, to notice their import.
    for name in HEAVY:
        (tmp_path / f"{name}.py").write_text("")
    code = f"import sys; sys.path[:0] = {[str(tmp_path), *SOURCES]!r}\n{program}\n"
    code += f"print('HEAVY', sorted(set({HEAVY!r}) & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=clean_env(), timeout=60
    )
    assert done.stdout.splitlines()[-1:] == ["HEAVY []"], done.stdout + done.stderr


def test_every_framework_extra_has_constraints() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    extras = set(setup["options.extras_require"])
    assert {"trl", "verl", "openrlhf", "oat-llm", "rl2", "skyrl", "tinker"} <= extras
    for name in ADAPTERS:
        lines = (ROOT / "constraints" / f"{name}.txt").read_text().splitlines()
        pins = [line for line in lines if line and not line.startswith("#")]
        assert pins, name
        assert [pin for pin in pins if "  # " not in pin] == [], f"{name}.txt: pins need a reason"


def test_quickstart_pins_what_its_extras_and_smollm2_need() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    lines = (ROOT / "constraints" / "transformers.txt").read_text().splitlines()
    pins = {line.partition("==")[0] for line in lines if "==" in line}
    extras = setup["options.extras_require"]
    needed = {
        re.split(r"[>=<;]", line)[0]
        for extra in ("transformers", "plot")
        for line in extras[extra].splitlines()
        if line and not line.startswith("#")
    }
    assert {"torch", "transformers", "matplotlib"} <= needed <= pins
    # transformers raises ValueError without them when it reads a GGUF file
    assert {"accelerate", "gguf"} <= needed
