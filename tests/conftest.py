"""Shared test configuration: packages that tests need, the rule on skips, and installations."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from project import ROOT, Installation, install, run

ALLOWED_SKIPS = (
    "needs a GPU",
    "needs a checkout that no index carries",
    "needs a container engine",
    "needs a memory cgroup",
)
"""With CI=true a skip fails unless its reason starts with one of these: a test that never runs
looks like one that passes."""


try:
    from hypothesis import HealthCheck, settings
except ModuleNotFoundError:
    pass
else:
    # on a busy machine, the first example of a test takes seconds
    settings.register_profile("gem", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("gem")


NEEDS = {
    "adapters/oat": ("oat", "torch"),
    "adapters/openrlhf": ("openrlhf", "ray", "torch", "vllm"),
    "adapters/rl2": ("RL2", "torch"),
    "adapters/skyrl": ("ray", "skyrl", "torch"),
    "adapters/tinker": ("tinker", "torch"),
    "adapters/trl": ("torch", "trl"),
    "adapters/verl": ("ray", "torch", "verl"),
    "benchmarks/test_algorithms.py": ("torch",),
    "benchmarks/test_offline.py": ("zstandard",),
    "benchmarks/test_scenarios.py": ("bm25s", "minigrid", "textcraft", "torch"),
    "benchmarks/test_studies.py": ("torch",),
    "benchmarks/test_studies_report.py": ("matplotlib",),
    "docs/test_site.py": ("griffe", "mkdocs", "mkdocstrings"),
    "examples/test_adapter_template.py": ("torch", "transformers"),
    "examples/test_no_framework.py": ("matplotlib", "torch", "transformers", "tyro"),
    "examples/test_vector_and_ray.py": ("tyro",),
    "gem_core/policies/test_models.py": ("torch", "transformers"),
    "gem_core/policies/test_tiny.py": ("torch", "transformers"),
    "gem_core/policies/test_transformers_policy.py": ("torch", "transformers"),
    "gem_core/rollout/test_templates.py": ("transformers", "trl"),
    "gem_core/training/test_warm_up.py": ("torch", "transformers"),
    "gem_envs/agentgym": ("minigrid", "scienceworld", "textcraft", "textworld_express"),
    "gem_envs/agents/test_deep_search.py": ("bm25s",),
    "gem_envs/datasets/test_datasets.py": ("math_verify", "pyarrow"),
    "gem_envs/datasets/test_reasoning.py": ("numpy", "reasoning_gym"),
    "gem_envs/gymnasium": ("gymnasium",),
    "gem_envs/mcp_suite": ("mcp", "mcp_server_git", "mcp_server_time", "psycopg"),
    "gem_envs/remote/test_openenv.py": ("openenv", "websockets"),
    "gem_envs/test_every_id.py": (
        "math_verify",
        "minigrid",
        "miniwob",
        "playwright",
        "reasoning_gym",
        "scienceworld",
        "textcraft",
    ),
    "gem_envs/web/test_miniwob.py": ("miniwob", "playwright"),
    "gem_envs/web": ("playwright",),
    "gem_envs/worlds/test_training.py": ("bm25s", "miniwob", "playwright", "torch", "transformers"),
    "gem_envs/worlds": ("bm25s",),
    "gem_eval/test_drawn_curves.py": ("matplotlib", "tensorboard", "tensorboardX", "trackio"),
    "gem_eval/test_smollm2_server.py": ("torch", "transformers"),
    "gem_eval/test_suite_frozen.py": (
        "bm25s",
        "math_verify",
        "minigrid",
        "miniwob",
        "playwright",
        "reasoning_gym",
        "scienceworld",
        "textcraft",
        "textworld_express",
    ),
    "gem_eval/test_tiny_commands.py": ("matplotlib", "torch", "transformers"),
    "gem_eval/test_viewer_in_browser.py": ("playwright",),
    "gem_execution/test_ray_hosts.py": ("ray",),
    "gem_tools/test_dense.py": ("numpy",),
    "gem_tools/test_episodes.py": ("bm25s", "mcp"),
    "gem_tools/test_mcp.py": ("mcp",),
    "gem_tools/test_mcp_limit.py": ("mcp",),
    "gem_tools/test_search.py": ("bm25s",),
}
"""The packages that tests need beyond those of the core, by path under tests/. Tests with missing
packages are not collected unless the command line names them, which shows the import error."""

PROGRAMS = {
    "gem_envs/agentgym": ("java",),
    "gem_envs/mcp_suite": ("bwrap", "git", "pg_ctlcluster"),
    "gem_envs/terminal": ("bwrap", "git", "make"),
    "gem_envs/test_every_id.py": ("bwrap", "chromium", "java"),
    "gem_envs/web": ("chromium",),
    "gem_envs/worlds/test_training.py": ("chromium",),
    "gem_eval/test_suite_frozen.py": ("bwrap", "chromium", "java"),
    "gem_eval/test_viewer_in_browser.py": ("chromium",),
    "gem_tools/test_attacks.py": ("bwrap",),
    "gem_tools/test_docs.py": ("bwrap",),
    "gem_tools/test_episodes.py": ("bwrap",),
    "gem_tools/test_python.py": ("bwrap",),
    "gem_tools/test_session.py": ("bwrap", "git"),
}
"""The programs that tests need; .ci/run installs them. Tests with missing programs are skipped."""
DEBIAN_PACKAGES = {
    "bwrap": "bubblewrap",
    "chromium": "chromium",
    "git": "git",
    "java": "default-jre-headless",
    "make": "make",
    "pg_ctlcluster": "postgresql",
}
TESTS = Path(__file__).parent


def needs_of(table: Mapping[str, tuple[str, ...]], path: Path) -> tuple[str, ...]:
    """Return the entry of the table for a path or a folder that contains it."""
    if not path.is_relative_to(TESTS):
        return ()
    relative = path.relative_to(TESTS)
    return next((needs for place, needs in table.items() if relative.is_relative_to(place)), ())


def missing_packages(path: Path) -> list[str]:
    """Return the missing packages of the tests at a path."""
    return [name for name in needs_of(NEEDS, path) if importlib.util.find_spec(name) is None]


def is_named(path: Path, config: pytest.Config) -> bool:
    """Return whether the command line names the entry of a path in `NEEDS`, or a path inside it."""
    entries = [TESTS / place for place in NEEDS if path.is_relative_to(TESTS / place)]
    named = [
        (config.invocation_params.dir / argument.partition("::")[0]).resolve()
        for argument in config.args
    ]
    return any(argument.is_relative_to(entry) for argument in named for entry in entries)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore tests whose packages are missing, unless the command line names them."""
    ignore = missing_packages(collection_path) and not is_named(collection_path, config)
    return True if ignore else None


def pytest_report_header(config: pytest.Config) -> str | None:
    """Report which tests are not collected, and why."""
    paths = [(TESTS / place, place) for place in NEEDS]
    ignored = {
        place: missing
        for path, place in paths
        if (missing := missing_packages(path)) and not is_named(path, config)
    }
    if not ignored:
        return None
    return "not collected: " + "; ".join(
        f"{place} needs {', '.join(missing)}" for place, missing in ignored.items()
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests whose programs are missing; with CI=true the skip fails."""
    for item in items:
        missing = [
            DEBIAN_PACKAGES[program]
            for program in needs_of(PROGRAMS, item.path)
            if shutil.which(program) is None
        ]
        if missing:
            reason = f"needs Debian packages: apt-get install {' '.join(missing)}"
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_configure() -> None:
    """Enable Ctrl-C, which background jobs of a shell, and the programs they start, ignore."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _fail_skip_in_ci(report: pytest.TestReport | pytest.CollectReport) -> None:
    if (
        report.outcome != "skipped"
        or hasattr(report, "wasxfail")
        or os.environ.get("CI", "").lower() not in ("1", "true")
    ):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    reason = reason.removeprefix("Skipped: ")
    if not reason.startswith(ALLOWED_SKIPS):
        report.outcome = "failed"  # type: ignore[assignment]
        report.longrepr = (
            f"skipped in CI: {reason}. "
            "Install what it needs, or add the reason to ALLOWED_SKIPS in tests/conftest.py."
        )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[None]:
    report = yield
    _fail_skip_in_ci(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Iterator[None]:
    report = yield
    _fail_skip_in_ci(report)
    return report


@pytest.fixture
def batch_ends() -> Iterator[list[list[Any]]]:
    """Return a list that collects the episodes of every `batch_end` event in this process."""
    from gem_core import hookimpl
    from gem_core.plugins.manager import register_plugin, unregister_plugin

    collected: list[list[Any]] = []

    class Plugin:
        @hookimpl
        def batch_end(self, episodes: Any) -> None:
            collected.append(list(episodes))

    register_plugin(Plugin(), "batch_ends")
    yield collected
    unregister_plugin("batch_ends")


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Return a function that prints tables and scores to the log, past pytest's capture."""

    def show(text: str) -> None:
        with capsys.disabled():
            print(f"\n{text}")  # noqa: T201

    return show


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the sdist and the wheel, and return their folder."""
    # Build in a copy, because building writes into the source tree.
    source = tmp_path_factory.mktemp("source") / "gem"
    ignored = shutil.ignore_patterns(
        ".git",
        ".tox",
        ".venv*",
        "build",
        "dist",
        "*.egg-info",
        "__pycache__",
        ".*_cache",
        ".hypothesis",
        "runs",
    )
    shutil.copytree(ROOT, source, ignore=ignored)
    run(sys.executable, "-m", "build", "--no-isolation", cwd=source)
    return source / "dist"


@pytest.fixture(scope="session")
def wheel(dist: Path) -> Path:
    """Return the path of the built wheel."""
    (wheel,) = dist.glob("*.whl")
    return wheel


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Installation:
    """Install gem with its requirements, packaging and pluggy, only."""
    return install(tmp_path_factory.mktemp("installed"), wheel)


@pytest.fixture(scope="session")
def with_plugin(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Installation:
    """Install gem with the plugin of examples/plugin_project."""
    project = tmp_path_factory.mktemp("plugin") / "plugin_project"
    shutil.copytree(ROOT / "examples" / "plugin_project", project)
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", cwd=project)
    return install(
        tmp_path_factory.mktemp("with_plugin"), wheel, *(project / "dist").glob("*.whl"), "pytest"
    )
