"""Snippets: the code blocks of the documentation, how they are marked, and how a page runs them.

An HTML comment directly before a fenced block marks it:

| mark                         | meaning                                                       |
|------------------------------|---------------------------------------------------------------|
| none                         | run in the core environments, with the extras gymnasium, http |
| `<!-- test: ENV -->`         | run in the tox environment ENV                                |
| `<!-- test: skip REASON -->` | not run; REASON is in `SKIPS` and visible to the reader       |
| `<!-- test: output -->`      | a text block: what the block before it prints                 |

`python` blocks of a page share a namespace, and all blocks share a temporary working directory with
a copy of `examples/`; pages of a project in `examples/` run in that project. A `sh` block runs with
`bash -e`. Other languages are not run. In an output block a line `...` stands for any number of
lines. GEM_WRITE_DOCS=1 writes the output blocks anew.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from project import ROOT, clean_env

__all__ = [
    "ENVIRONMENTS",
    "PAGES",
    "PROGRAMS",
    "Block",
    "Session",
    "blocks_of",
    "is_visible",
    "problems_of",
    "shown_settings",
]

ENVIRONMENTS = {
    "core": ("gymnasium", "httpx"),
    "torch": ("matplotlib", "torch", "transformers"),
    "plugins": ("bm25s", "math_verify", "mcp", "ray"),
    "scenarios": ("minigrid", "playwright", "scienceworld", "textcraft"),
    "trl": ("trl",),
    "verl": ("verl",),
    "openrlhf": ("openrlhf",),
    "oat": ("oat",),
    "rl2": ("RL2",),
    "skyrl": ("skyrl",),
    "tinker": ("tinker", "torch"),
}
"""The tox environments that run blocks, with the packages that their blocks need."""
PROGRAMS = {"scenarios": ("bwrap", "chromium", "java")}
"""The programs that the blocks of an environment need; .ci/run installs them."""
MOCKS = {
    "oat": ROOT / "tests/adapters/oat/mocks",
    "openrlhf": ROOT / "tests/adapters/openrlhf/cpu",
    "rl2": ROOT / "tests/adapters/rl2/mocks",
}
"""Folders with mocks of packages that need a GPU to install, for the path of an environment."""
SKIPS = {
    "needs a GPU": r"\bGPU",
    "needs a server": r"\bserve",
    "opens a browser": r"\bbrowser",
    "installs packages": r"\binstall",
    "interactive": r"\b(interactive|a person)\b",
    "takes minutes": r"\b(minutes|hours)\b",
}
"""The reasons for which a block is not run, and what the text around the block must mention."""
_ELSEWHERE = re.compile(r"(.+); (\S+) runs it")
"""A reason may name the test that runs the block."""
_RUN = ("python", "sh")
_SHOWN = ("ini", "json", "markdown", "text", "toml", "yaml")
_MARK = re.compile(r"<!-- test: (.+?) -->")
_TIMEOUT = 900

PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "adapters").glob("*/README.md")),
    *sorted((ROOT / "examples").rglob("README.md")),
]


@dataclass(frozen=True)
class Block:
    """A code block of a page."""

    page: Path
    line: int
    """The line of the page where the code begins, counted from 1."""
    language: str
    code: str
    mark: str
    """The text of its mark; empty if it has none."""
    around: str
    """The text of the section around it."""

    @property
    def name(self) -> str:
        """The page and the line, for the id of a test."""
        path = self.page.relative_to(ROOT) if self.page.is_relative_to(ROOT) else self.page.name
        return f"{path}:{self.line}"

    @property
    def environment(self) -> str | None:
        """The environment that runs it; None if it is not run."""
        if self.language not in _RUN or self.mark.startswith("skip "):
            return None
        return self.mark or "core"


def blocks_of(page: Path) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    lines = page.read_text(encoding="utf-8").splitlines()
    headings = [0, *(n for n, line in enumerate(lines) if line.startswith("#")), len(lines)]
    blocks = []
    opened: tuple[int, str, str] | None = None
    for number, line in enumerate(lines):
        fence = re.match(r" *(`{3,})(\w*)\s*$", line)
        if opened is None and fence:
            opened = (number, fence[1], fence[2])
        elif opened is not None and line.strip() == opened[1]:
            begin, _, language = opened
            opened = None
            code = "\n".join(lines[begin + 1 : number]) + "\n"
            mark = _MARK.fullmatch(lines[begin - 1].strip()) if begin else None
            first = max(n for n in headings if n <= begin)
            last = min(n for n in headings if n > number)
            around = "\n".join(lines[first:last])
            blocks.append(Block(page, begin + 2, language, code, mark[1] if mark else "", around))
    return blocks


def shown_settings(page: str, package: str) -> tuple[Any, Any]:
    """Return (config, settings) of the first block of a page that imports `train` of an adapter.

    The block is run, but trains nothing. The page's own environment is replaced by a game.
    """
    blocks = blocks_of(ROOT / page)
    shown = (b.code for b in blocks if re.search(rf"from {package} import .*\btrain\b", b.code))
    namespace: dict[str, Any] = {}
    with patch(f"{package}.train"):
        exec(next(shown).replace("mine:Larger-v0", "game:GuessTheNumber-v0-easy"), namespace)
    return namespace["config"], namespace["settings"]


def problems_of(page: Path) -> Iterator[str]:
    """Yield what is wrong with the blocks and marks of a page."""
    text = page.read_text(encoding="utf-8")
    blocks = blocks_of(page)
    marks = [line for line in text.splitlines() if _MARK.fullmatch(line.strip())]
    if len(marks) != sum(bool(block.mark) for block in blocks):
        yield f"{page.name}: a test mark is not directly before a fenced block"
    for number in _indented(text):
        yield f"{page.name}:{number}: code is indented; put it between ``` lines"
    before: Block | None = None
    for block in blocks:
        if block.language not in (*_RUN, *_SHOWN):
            known = ", ".join((*_RUN, *_SHOWN))
            yield f"{block.name}: the language is {block.language!r}; write one of {known}"
        elif block.mark == "output":
            if block.language != "text":
                yield f"{block.name}: an output block is a text block"
            if before is None or before.environment is None:
                yield f"{block.name}: there is no block before it that runs"
        elif block.mark.startswith("skip "):
            yield from _skip_problems(block)
        elif block.mark and block.mark not in ENVIRONMENTS:
            yield f"{block.name}: {block.mark!r} is not one of {', '.join(ENVIRONMENTS)}"
        before = block


def _skip_problems(block: Block) -> Iterator[str]:
    reason = block.mark.removeprefix("skip ")
    elsewhere = _ELSEWHERE.fullmatch(reason)
    if elsewhere is not None:
        reason = elsewhere[1]
        if not (ROOT / elsewhere[2]).exists():
            yield f"{block.name}: {elsewhere[2]} does not exist"
    if reason not in SKIPS:
        yield f"{block.name}: {reason!r} is not one of {', '.join(SKIPS)}"
    elif not is_visible(reason, block):
        yield f"{block.name}: nothing near the block tells the reader that it {reason}"


def is_visible(reason: str, block: Block) -> bool:
    """Return whether the section of a block, or the block itself, mentions the reason."""
    text = re.sub(r"<!--.*?-->", "", block.around, flags=re.DOTALL)
    return re.search(SKIPS[reason], text, re.IGNORECASE) is not None


def _indented(text: str) -> Iterator[int]:
    """Yield the lines where an indented code block begins."""
    fenced, listed, previous = False, False, ""
    for number, line in enumerate(text.splitlines(), 1):
        if re.match(r" *```", line):
            fenced = not fenced
        elif not fenced and line.strip():
            if not line.startswith(" "):
                listed = bool(re.match(r"([-*]|\d+\.) ", line))
            elif line.startswith("    ") and not listed and not previous.strip():
                yield number
        previous = line


class Session:
    """The blocks of one page in one environment: a working directory and a Python process."""

    def __init__(self, page: Path, folder: Path, environment: str = "core") -> None:
        self._mocks = MOCKS.get(environment)
        project = page.relative_to(ROOT).parts[:2] if page.is_relative_to(ROOT) else ()
        self.folder = folder / Path(*project) if "examples" in project else folder
        shutil.copytree(
            ROOT / "examples",
            folder / "examples",
            ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "build"),
        )
        self._python: subprocess.Popen[str] | None = None
        self._printed = ""
        self._failed: str | None = None
        self._written: list[tuple[Block, str]] = []

    def run(self, block: Block) -> None:
        """Run a block, or compare an output block with what was printed; raise if it fails."""
        if self._failed is not None:
            raise AssertionError(f"{self._failed} failed before this block")
        if block.mark == "output":
            if os.environ.get("GEM_WRITE_DOCS") and "..." not in block.code.splitlines():
                self._written.append((block, self._printed))
            else:
                _compare(block, self._printed)
            return
        try:
            run = self._run_python if block.language == "python" else self._run_sh
            self._printed = run(block)
        except BaseException:
            self._failed = block.name
            raise

    def close(self) -> None:
        """End the Python process, and write output blocks if GEM_WRITE_DOCS is set."""
        if self._python is not None:
            assert self._python.stdin is not None and self._python.stdout is not None
            self._python.stdin.close()
            self._python.wait(timeout=60)
            self._python.stdout.close()
        for block, printed in reversed(self._written):
            lines = block.page.read_text(encoding="utf-8").splitlines()
            begin = block.line - 1
            end = next(n for n in range(begin, len(lines)) if lines[n].startswith("```"))
            lines[begin:end] = [line.rstrip() for line in printed.rstrip().splitlines()]
            block.page.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def _env(self) -> dict[str, str]:
        scripts = Path(sys.executable).parent
        # Each block that imports torch would compile it again if no bytecode were written.
        env = clean_env(
            PATH=f"{scripts}{os.pathsep}{os.environ['PATH']}", PYTHONDONTWRITEBYTECODE=""
        )
        return env if self._mocks is None else {**env, "PYTHONPATH": str(self._mocks)}

    def _run_sh(self, block: Block) -> str:
        done = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", block.code],
            cwd=self.folder,
            env=self._env(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
        )
        if done.returncode:
            raise AssertionError(
                f"{block.name} exits with {done.returncode}\n{done.stdout}\n{done.stderr}"
            )
        return done.stdout

    def _run_python(self, block: Block) -> str:
        if self._python is None:
            program = Path(__file__).with_name("snippet_program.py")
            self._python = subprocess.Popen(
                [sys.executable, str(program)],
                cwd=self.folder,
                env=self._env(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert self._python.stdin is not None and self._python.stdout is not None
        output = self.folder / ".printed"
        request = {"code": block.code, "page": block.name.rpartition(":")[0], "line": block.line}
        self._python.stdin.write(json.dumps({**request, "output": str(output)}) + "\n")
        self._python.stdin.flush()
        answer = self._python.stdout.readline()
        printed = output.read_text(encoding="utf-8") if output.exists() else ""
        if not answer:
            raise AssertionError(f"{block.name} ended the interpreter\n{printed}")
        error = json.loads(answer)
        if error:
            raise AssertionError(f"{block.name} raises\n{printed}\n{error}")
        return printed


def _compare(block: Block, printed: str) -> None:
    expected = [line.rstrip() for line in block.code.rstrip().splitlines()]
    shown = [line.rstrip() for line in printed.rstrip().splitlines()]
    pattern = "".join("(?:.*\n)*" if line == "..." else re.escape(line) + "\n" for line in expected)
    if re.fullmatch(pattern, "".join(f"{line}\n" for line in shown)) is None:
        raise AssertionError(
            f"{block.name} differs from what the block before it prints:\n" + "\n".join(shown)
        )
