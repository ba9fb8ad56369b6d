"""Every code block of the documentation runs in the tox environment that its mark names.

`snippets.py` explains the marks. Without tox, the blocks run whose packages are installed.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from snippets import ENVIRONMENTS, PAGES, PROGRAMS, Block, Session, blocks_of, problems_of


def environments_here() -> set[str]:
    """Return the environments whose blocks run in this process."""
    tox = os.environ.get("TOX_ENV_NAME", "").removesuffix("-slow")
    if tox in ENVIRONMENTS:
        return {tox}
    if tox:
        return {"core"}
    return {
        name
        for name, packages in ENVIRONMENTS.items()
        if all(importlib.util.find_spec(package) for package in packages)
    }


def cases() -> Iterator[object]:
    """Yield the blocks to run, and the output blocks after them, with the id page:line."""
    here = environments_here()
    for page in PAGES:
        running = None
        for block in blocks_of(page):
            if block.mark != "output":
                running = block.environment
            if running in here and (block.mark == "output" or block.environment):
                yield pytest.param(block, running, id=block.name)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Block, str], None]]:
    """Run a block after the earlier blocks of its page and environment."""
    sessions: dict[tuple[Path, str], Session] = {}
    done: set[tuple[Path, int]] = set()

    def run_block(block: Block, environment: str) -> None:
        session = sessions.get((block.page, environment))
        if session is None:
            folder = tmp_path_factory.mktemp(block.page.parent.name + block.page.stem)
            session = sessions[block.page, environment] = Session(block.page, folder, environment)
        running = None
        for each in blocks_of(block.page):
            if each.mark != "output":
                running = each.environment
            if running != environment or (each.page, each.line) in done or each.line > block.line:
                continue
            done.add((each.page, each.line))
            session.run(each)

    yield run_block
    for session in sessions.values():
        session.close()


@pytest.mark.parametrize(("block", "environment"), list(cases()))
def test_block_runs(block: Block, environment: str, run: Callable[[Block, str], None]) -> None:
    missing = [name for name in PROGRAMS.get(environment, ()) if shutil.which(name) is None]
    if missing:
        pytest.skip(f"needs programs of Debian: {', '.join(missing)}")
    try:
        run(block, environment)
    except AssertionError as error:
        pytest.fail(str(error), pytrace=False)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}-{page.stem}")
def test_every_block_of_a_page_is_run_or_marked(page: Path) -> None:
    assert list(problems_of(page)) == []


def page_of(tmp_path: Path, text: str) -> Path:
    page = tmp_path / "page.md"
    page.write_text(text)
    return page


def run_page(tmp_path: Path, text: str) -> int:
    """Run all blocks of a page and return their number."""
    page = page_of(tmp_path, text)
    session = Session(page, tmp_path / "folder")
    blocks = list(blocks_of(page))
    try:
        for block in blocks:
            session.run(block)
    finally:
        session.close()
    return len(blocks)


PRINTS = "```python\nname = 'gem'\n```\n\n```python\nprint(name)\nprint(2)\n```\n\n"


@pytest.mark.parametrize("output", ["gem\n2", "...\n2", "gem\n..."])
def test_output_equals_what_the_block_before_prints(tmp_path: Path, output: str) -> None:
    text = f"{PRINTS}<!-- test: output -->\n```text\n{output}\n```\n"
    assert run_page(tmp_path, text) == 3


@pytest.mark.parametrize("output", ["gem", "gem\n3", "...\n3", ""])
def test_different_output_fails(tmp_path: Path, output: str) -> None:
    with pytest.raises(AssertionError, match=r"page\.md:12 differs"):
        run_page(tmp_path, f"{PRINTS}<!-- test: output -->\n```text\n{output}\n```\n")


def test_failing_python_names_the_line_of_the_page(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r'page\.md:2", line 3'):
        run_page(tmp_path, "```python\n1\n1 / 0\n```\n")


def test_failing_command_stops_the_block(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"page\.md:2 exits with 1"):
        run_page(tmp_path, "```sh\nfalse\ntrue\n```\n")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("```python\n1\n```\n", None),
        ("A person types here.\n\n<!-- test: skip interactive -->\n```sh\ngem-rl\n```\n", None),
        ("<!-- test: skip needs a GPU -->\n```sh\ngem-rl\n```\n", "nothing near the block"),
        ("<!-- test: skip too long -->\n```sh\ngem-rl\n```\n", "is not one of"),
        (
            "It installs.\n<!-- test: skip installs packages; no.py runs it -->\n```sh\n1\n```\n",
            "not exist",
        ),
        ("<!-- test: tensorflow -->\n```sh\ngem-rl\n```\n", "is not one of"),
        ("<!-- test: torch -->\n\n```sh\ngem-rl\n```\n", "not directly before"),
        ("<!-- test: output -->\n```text\n1\n```\n", "no block before it"),
        ("```\n1\n```\n", "the language is ''"),
        ("Text:\n\n    gem-rl\n", "code is indented"),
        ("- an item\n\n    of two paragraphs\n", None),
    ],
)
def test_wrong_marks_are_found(tmp_path: Path, text: str, problem: str | None) -> None:
    problems = list(problems_of(page_of(tmp_path, text)))
    assert len(problems) == (problem is not None)
    assert problem is None or problem in problems[0]
