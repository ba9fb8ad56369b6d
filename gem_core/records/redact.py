"""Redaction: what keeps secrets out of anything that is written down.

A secret is (1) the value, of 8 characters or more, of an environment variable whose name holds KEY, TOKEN, SECRET, PASSWORD,
PASSWD or CREDENTIAL, or one the caller names; and, in text that comes from programs rather than from a model: (2) the value of
a header such as `Authorization` or `Cookie`, (3) the user and password of a URL, (4) a string in the well-known shape of a key;
and, in a mapping: (5) the string under a key that is such a header, or whose last word names a secret, such as `api_key`,
`dbPassword` or `SERVICE_TOKEN`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

__all__ = ["REDACTED", "Redactor"]

REDACTED = "[redacted]"

_SHORTEST = 8
"""Shorter values (`true`, `1`, `none`) stand in too many innocent texts."""
_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL", re.IGNORECASE)
_HEADERS = (
    r"(?:proxy-)?authorization|x-api-key|api[-_]?key|x-auth-token|access[-_]token|cookie|set-cookie"
)
_HEADER_NAME = re.compile(_HEADERS, re.IGNORECASE)
_HEADER = re.compile(
    rf"""(?P<name>\b(?:{_HEADERS})["']?\s*(?:[:=]\s*|,\s*(?=b?["'])))"""
    r"""(?:b?"(?P<double>[^"]+)"|b?'(?P<single>[^']+)'|(?P<bare>[^\r\n&"']+))""",
    re.IGNORECASE,
)
_SECRET_NAME = re.compile(
    r"(?:.*_)?(?:token|secret|password|passwd|passphrase|credentials?|api_?key|(?:access|account|auth|private|secret|signing)_?key)"
)
_VARIABLE = re.compile(r"[A-Z0-9_]+_KEY")
"""In capitals, which is an environment variable; `answer_key` is the name of a column."""
_PLAIN_TOKEN = re.compile(
    r"(?:.*_)?(?:bos|cls|end|eos|first|image|last|mask|next|pad|sep|special|start|stop|unk)_token"
)
"""These are read by a model or written by it."""
_OF_GAMES = frozenset({"secret", "token"})
"""In an info, the word to be guessed, or the one that was sampled."""
_BETWEEN_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9]+")
_BEARER = re.compile(
    r"(?P<name>\b(?:bearer|basic)\s+)(?P<value>[A-Za-z0-9._~+/=-]{8,})", re.IGNORECASE
)
_IN_URL = re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)")
_SHAPES = re.compile(
    r"\b(?:sk-[A-Za-z0-9_-]{16,}|hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{16,}|AKIA[0-9A-Z]{16})"
)


class Redactor:
    """Takes secrets out of strings. The environment is read at `refresh`, so that keys set later are known too."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        """`secrets`: further strings that must never be written."""
        self._given = {s for s in secrets if s}
        self.refresh()

    def refresh(self) -> None:
        """Reads the environment variables again."""
        found = {
            value
            for name, value in os.environ.items()
            if len(value) >= _SHORTEST and _NAME.search(name)
        }
        found |= self._given
        # the longest first: one secret may hold another
        self._known = (
            re.compile("|".join(re.escape(s) for s in sorted(found, key=len, reverse=True)))
            if found
            else None
        )

    def text(self, text: str) -> str:
        """A text from a model or an environment, without the secrets that are known by value."""
        return self._known.sub(REDACTED, text) if self._known is not None else text

    def said(self, text: str) -> str:
        """A text from a program (an error, an info), also without headers, passwords in URLs and what looks like a key."""
        text = self.text(text)
        text = _HEADER.sub(_without_value, text)
        text = _BEARER.sub(rf"\g<name>{REDACTED}", text)
        return _SHAPES.sub(REDACTED, _IN_URL.sub(REDACTED, text))

    def names_secret(self, key: str, *, info: bool = False) -> bool:
        """Whether a string under this key of a mapping is a secret, whatever it looks like. `info`: an environment wrote it."""
        if _HEADER_NAME.fullmatch(key) or _VARIABLE.fullmatch(key):
            return True
        words = _BETWEEN_WORDS.sub("_", key).strip("_").lower()
        if _PLAIN_TOKEN.fullmatch(words) or (info and words in _OF_GAMES):
            return False
        return _SECRET_NAME.fullmatch(words) is not None


def _without_value(header: re.Match[str]) -> str:
    """Quotes stay, so that a text that is redacted twice is the same as one that is redacted once."""
    at = next(
        header.span(name) for name in ("double", "single", "bare") if header[name] is not None
    )
    return header.string[header.start() : at[0]] + REDACTED + header.string[at[1] : header.end()]
