"""Redaction: remove secrets from text and data before they are written.

A secret in any text is
1. the value (8 characters or more) of an environment variable whose name contains KEY, TOKEN,
   SECRET, PASSWORD, PASSWD or CREDENTIAL, or a string that the caller names.
In text from programs, such as errors, also
2. the value of a header such as `Authorization` or `Cookie`,
3. the user and password of a URL,
4. a string with the known shape of a key, such as a JWT or a PEM private key,
5. the value after a name of rule 6: `password=...`, `"client_secret": "..."` or `--api-key ...`.
In a mapping, also
6. the strings under a key that is such a header, or whose last word names a secret, such as
   `api_key`, `dbPassword` or `SERVICE_TOKEN`; in a list or mapping under it, every string; in a
   list of arguments, the string after `--api-key`,
7. the strings under `headers`, and under `env` if the key is in capitals, except common names that
   hold no secret, such as `Accept` and `PATH`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from functools import lru_cache

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
    r"(?:.*_)?(?:token|secrets?|[a-z0-9]*passwords?|passwd|pwd|passphrase|credentials?|auth|bearer|cookies|"
    r"api_?keys?|(?:access|account|auth|private|secret|signing)_?keys?)"
)
_END = r"""\s&,;"'()\[\]{}<>"""
_ASSIGNED = re.compile(
    r"(?<![\w-])(?P<name>[\w-]{0,64}?"
    r"(?:token|secret|passw(?:or)?d|passphrase|pwd|credential|key)s?)"
    r"""\\?["']?(?:\s*[:=]\s*\\?(?:b?"(?P<double>[^"\\]+)|b?'(?P<single>[^'\\]+))"""
    rf"|(?:=|:[ ]?)(?!(?:none|null|true|false)\b)(?P<bare>[^={_END}][^{_END}]{{3,}}))",
    re.IGNORECASE,
)
_OPTION = re.compile(
    r"""(?<!\S)(?P<name>--[\w-]{1,64})[ ]+"""
    r"""(?:"(?P<double>[^"]+)|'(?P<single>[^']+)|(?P<bare>[^\s"'-][^\s"']{3,}))"""
)
_CONTAINER = re.compile(r"(?:.*_)?(?P<kind>headers|env|environ|environment)")
_PLAIN = {
    "headers": re.compile(r"accept.*|content_.*|date|host|server|user_agent|vary|cache_control"),
    "env": re.compile(r"LANG|LC_\w+|\w*PATH|HOME|PYTHON\w+|PWD|SHELL|TERM|TMPDIR|TZ|USER|[^A-Z].*"),
}
"""The names under `headers` and `env` whose values are no secrets."""
_VARIABLE = re.compile(r"[A-Z0-9_]+_KEY")
"""An environment variable, in capitals; `answer_key` is a column name."""
_PLAIN_TOKEN = re.compile(
    r"(?:.*_)?(?:bos|cls|end|eos|first|image|last|mask|next|pad|sep|special|start|stop|unk)_token"
)
"""Special tokens and the like, which are not secrets."""
_GAME_WORDS = frozenset({"secret", "secrets", "token"})
"""Keys of an environment's info that are not secrets: a word to guess, a sampled token."""
_BETWEEN_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9]+")
_BEARER = re.compile(
    r"(?P<name>\b(?:bearer|basic)\s+)(?P<value>[A-Za-z0-9._~+/=-]{8,})", re.IGNORECASE
)
_IN_URL = re.compile(r"(?<=://)(?:[^/\s:@]{0,256}:[^/\s@]{1,1024}|[^/\s:@]{8,1024})(?=@)")
_SHAPES = re.compile(
    r"\b(?:sk-[A-Za-z0-9_-]{16,}|[rs]k_(?:live|test)_\w{16,}|hf_[A-Za-z0-9]{16,}|npm_\w{30,}"
    r"|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}|A[KS]IA[0-9A-Z]{16}"
    r"|xox[a-z]-[\w-]{10,}|xapp-[\w-]{10,}|AIza[\w-]{30,}|ya29\.[\w-]{16,}"
    r"|eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?)"
    r"|-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----[\w\s+/=:,.\\]*(?:-----END [A-Z ]{0,40}-----)?"
)


class Redactor:
    """Remove secrets from strings. `refresh` reads the environment variables again."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        """`secrets` are additional strings to redact."""
        self._named = {s for s in secrets if s}
        self.refresh()

    def refresh(self) -> None:
        """Read the environment variables again."""
        secrets = self._named | {
            value
            for name, value in os.environ.items()
            if len(value) >= _SHORTEST and _NAME.search(name)
        }
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
        text = _OPTION.sub(self._assigned, _ASSIGNED.sub(self._assigned, text))
        text = _BEARER.sub(rf"\g<name>{REDACTED}", text)
        return _SHAPES.sub(REDACTED, _IN_URL.sub(REDACTED, text))

    def _assigned(self, match: re.Match[str]) -> str:
        value = match["double"] or match["single"] or match["bare"]
        word = match["name"].lower() in _GAME_WORDS and not re.fullmatch(r"(?=.*\d).{8,}", value)
        return match[0] if word or not self.names_secret(match["name"]) else _without_value(match)

    @staticmethod
    @lru_cache(4096)
    def names_secret(key: str, *, info: bool = False, parent: str = "") -> bool:
        """Return whether a string under this key is a secret.

        `info`: an environment wrote it. `parent` is the key of the mapping that contains it.
        """
        if container := _CONTAINER.fullmatch(_words(parent)):
            kind = "headers" if container["kind"] == "headers" else "env"
            if not _PLAIN[kind].fullmatch(_words(key) if kind == "headers" else key):
                return True
        if _HEADER_NAME.fullmatch(key) or _VARIABLE.fullmatch(key):
            return True
        words = _words(key)
        if _PLAIN_TOKEN.fullmatch(words) or (info and words in _GAME_WORDS):
            return False
        return _SECRET_NAME.fullmatch(words) is not None


def _words(name: str) -> str:
    """Return a name in snake case."""
    return _BETWEEN_WORDS.sub("_", name).strip("_").lower()


def _without_value(header: re.Match[str]) -> str:
    """Redact the value but keep its quotes, so redacting twice changes nothing."""
    groups = ("double", "single", "bare")
    start, end = next(header.span(name) for name in groups if header[name] is not None)
    return header.string[header.start() : start] + REDACTED + header.string[end : header.end()]
