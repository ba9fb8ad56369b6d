"""Code blocks: find the fenced blocks in a text of a model."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

__all__ = ["code_blocks"]

_FENCE = re.compile(r"(.*?)(`{3,})(.*)", re.DOTALL)
_LANGUAGE = re.compile(r"(?:\w(?:[\w+#./-]*[\w+#])?)?")


@dataclass
class _Block:
    """A block that is open."""

    language: str
    fence: str
    indent: int
    after_text: bool
    """Whether text precedes the opening fence in its line."""
    body: list[str] = field(default_factory=list)

    def add(self, line: str) -> None:
        """Add a line without the indentation of the block, as in a list."""
        spaces = len(line) - len(line.lstrip(" \t"))
        self.body.append(line[min(self.indent, spaces) :])

    def closed_by(self, before: str, fence: str, after: str) -> bool:
        """Whether a line with a fence ends the block."""
        if before.strip():
            return not after.strip()
        # a fence with a language, or far to the right, is in a docstring
        opens = after[:1].isalnum() and _LANGUAGE.fullmatch(after.strip())
        return len(fence) >= len(self.fence) and len(before) < self.indent + 4 and not opens


def code_blocks(text: str) -> list[tuple[str, str]]:
    """Return the language and the body of every fenced code block, in order.

    Models also open a block after text, close it after code or before text, and indent it. A fence
    in the middle of a line opens a block only if nothing but a language follows.
    """
    found: list[tuple[str, str]] = []
    block: _Block | None = None
    for line in text.splitlines(keepends=True):
        match = _FENCE.match(line)
        if match is None:
            if block is not None:
                block.add(line)
            continue
        before, fence, after = match.groups()
        if block is None:
            block = _opened(before, fence, after)
        elif block.closed_by(before, fence, after):
            block.add(before if before.strip() else "")
            found.append((block.language, "".join(block.body)))
            block = None
        elif block.after_text and not before.strip():  # the text only mentioned a fence
            block = _opened(before, fence, after) or block
        else:
            block.add(line)
    return found


def _opened(before: str, fence: str, after: str) -> _Block | None:
    """Return the block that a line with a fence opens, if it does."""
    after_text, language = bool(before.strip()), _LANGUAGE.match(after.strip())
    assert language is not None  # it may be empty
    if "`" in after or (after_text and language[0] != after.strip()):
        return None
    return _Block(language[0], fence, 0 if after_text else len(before), after_text)
