"""What all tests share: the rule on skips, and gem as a user has it, built into a wheel and installed."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from project import ROOT, Installation, install, run

ALLOWED_SKIPS = (
    "needs a GPU",
    "needs a checkout that no index carries",
)
"""How the reason of a skip must begin for it to be accepted under CI=true. Every other skip there is a failure: a test that
never runs looks just like one that passes."""


PROGRAMS = {"tests/scenarios/": ("bwrap", "chromium", "java"), "tests/suite/test_tools_": ("bwrap",)}
"""What tests need of the machine itself; .ci/run installs it."""
PACKAGES = {"bwrap": "bubblewrap", "chromium": "chromium", "java": "default-jre-headless"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where a program is missing, the tests that need it are skipped, which is a failure under CI=true."""
    for item in items:
        for begin, programs in PROGRAMS.items():
            missing = [PACKAGES[program] for program in programs if shutil.which(program) is None]
            if missing and item.nodeid.startswith(begin):
                item.add_marker(pytest.mark.skip(reason=f"needs packages of Debian: apt-get install {' '.join(missing)}"))


def pytest_configure() -> None:
    """A shell's background job ignores Ctrl-C, and so would every program that the tests start and interrupt."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.outcome != "skipped" or hasattr(report, "wasxfail") or os.environ.get("CI", "").lower() not in ("1", "true"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    reason = reason.removeprefix("Skipped: ")
    if not reason.startswith(ALLOWED_SKIPS):
        report.outcome = "failed"  # type: ignore[assignment]
        report.longrepr = f"skipped where CI is set: {reason}. Mend what it needs, or name the reason in tests/conftest.py."


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[None]:
    report = yield
    _refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Iterator[None]:
    report = yield
    _refuse_skip(report)
    return report


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Prints past pytest's capture: a table or a score is what the reader of a log looks for."""

    def show(text: str) -> None:
        with capsys.disabled():
            print(f"\n{text}")  # noqa: T201

    return show


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the sdist, and the wheel that was built from that sdist."""
    # A copy, because building writes into the source tree.
    source = tmp_path_factory.mktemp("source") / "gem"
    skipped = shutil.ignore_patterns(".git", ".tox", ".venv*", "build", "dist", "*.egg-info", "__pycache__", ".*_cache", "runs")
    shutil.copytree(ROOT, source, ignore=skipped)
    run(sys.executable, "-m", "build", "--no-isolation", cwd=source)
    return source / "dist"


@pytest.fixture(scope="session")
def wheel(dist: Path) -> Path:
    """The wheel a user installs."""
    (found,) = dist.glob("*.whl")
    return found


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Installation:
    """gem and pluggy, and nothing else."""
    return install(tmp_path_factory.mktemp("installed"), wheel)


@pytest.fixture(scope="session")
def with_plugin(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Installation:
    """gem with the plugin of examples/plugin_project, installed as its README says."""
    project = tmp_path_factory.mktemp("plugin") / "plugin_project"
    shutil.copytree(ROOT / "examples" / "plugin_project", project)
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", cwd=project)
    return install(tmp_path_factory.mktemp("with_plugin"), wheel, *(project / "dist").glob("*.whl"), "pytest")
