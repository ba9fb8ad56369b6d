"""Redaction: remove secrets from text and data before they are written.

A secret in any text is
1. the value (8 characters or more) of an environment variable whose name contains KEY, TOKEN,
   SECRET, PASSWORD, PASSWD or CREDENTIAL, or a string that the caller names.
In text from programs, such as errors, also
2. the value of a header such as `Authorization` or `Cookie`,
3. the user and password of a URL,
4. a string with the known shape of a key.
In a mapping, also
5. the string under a key that is such a header, or whose last word names a secret, such as
   `api_key`, `dbPassword` or `SERVICE_TOKEN`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

__all__ = ["REDACTED", "Redactor"]

REDACTED = "[redacted]"

_SHORTEST = 8
"""Shorter values (`true`, `1`, `none`) occur in too many harmless texts."""
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
    r"(?:.*_)?(?:token|secret|password|passwd|passphrase|credentials?|"
    r"api_?key|(?:access|account|auth|private|secret|signing)_?key)"
)
_VARIABLE = re.compile(r"[A-Z0-9_]+_KEY")
"""An environment variable, in capitals; `answer_key` is a column name."""
_PLAIN_TOKEN = re.compile(
    r"(?:.*_)?(?:bos|cls|end|eos|first|image|last|mask|next|pad|sep|special|start|stop|unk)_token"
)
"""Special tokens and the like, which are not secrets."""
_GAME_WORDS = frozenset({"secret", "token"})
"""Keys of an environment's info that are not secrets: a word to guess, a sampled token."""
_BETWEEN_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9]+")
_BEARER = re.compile(
    r"(?P<name>\b(?:bearer|basic)\s+)(?P<value>[A-Za-z0-9._~+/=-]{8,})", re.IGNORECASE
)
_IN_URL = re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)")
_SHAPES = re.compile(
    r"\b(?:sk-[A-Za-z0-9_-]{16,}|hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{16,}|AKIA[0-9A-Z]{16})"
)


class Redactor:
    """Remove secrets from strings. `refresh` reads the environment variables again."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        """`secrets` are additional strings to redact."""
        self._named = {s for s in secrets if s}
        self.refresh()

    def refresh(self) -> None:
        """Read the environment variables again."""
        secrets = {
            value
            for name, value in os.environ.items()
            if len(value) >= _SHORTEST and _NAME.search(name)
        }
        secrets |= self._named
        longest_first = sorted(secrets, key=len, reverse=True)  # one may contain another
        pattern = "|".join(re.escape(s) for s in longest_first)
        self._pattern = re.compile(pattern) if pattern else None

    def text(self, text: str) -> str:
        """Redact text from a model or an environment: secrets known by their value."""
        return self._pattern.sub(REDACTED, text) if self._pattern is not None else text

    def program_text(self, text: str) -> str:
        """Redact text from a program (an error, an info): also headers, URLs and key shapes."""
        text = self.text(text)
        text = _HEADER.sub(_without_value, text)
        text = _BEARER.sub(rf"\g<name>{REDACTED}", text)
        return _SHAPES.sub(REDACTED, _IN_URL.sub(REDACTED, text))

    def names_secret(self, key: str, *, info: bool = False) -> bool:
        """Return whether a string under this key is a secret. `info`: an environment wrote it."""
        if _HEADER_NAME.fullmatch(key) or _VARIABLE.fullmatch(key):
            return True
        words = _BETWEEN_WORDS.sub("_", key).strip("_").lower()
        if _PLAIN_TOKEN.fullmatch(words) or (info and words in _GAME_WORDS):
            return False
        return _SECRET_NAME.fullmatch(words) is not None


def _without_value(header: re.Match[str]) -> str:
    """Redact the value but keep its quotes, so redacting twice changes nothing."""
    groups = ("double", "single", "bare")
    start, end = next(header.span(name) for name in groups if header[name] is not None)
    return header.string[header.start() : start] + REDACTED + header.string[end : header.end()]
