"""The README's test command is the one that CI runs; tests/docs runs the README's code blocks."""

from __future__ import annotations

from project import ROOT

from gem_core.adapter_kit.declaration import adapters


def test_readme_test_command_is_the_ci_command() -> None:
    command = (
        "python3.11 -m venv .venv && .venv/bin/pip install tox && .venv/bin/tox run-parallel -p 2"
    )
    assert f"\n{command}\n" in (ROOT / "README.md").read_text()
    assert f"\n{command}\n" in (ROOT / ".ci" / "run").read_text()


def test_readme_says_what_ran_on_a_gpu() -> None:
    readme = (ROOT / "README.md").read_text()
    for adapter in adapters.all().values():
        assert f"| {adapter.gpu} |" in readme
