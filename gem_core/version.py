"""Version: the number of this release, and how release numbers compare.

The core needs no packaging library for one question: is what is installed inside a range? The order is that of PEP 440.
"""

from __future__ import annotations

import re

from gem_core.errors import ConfigError

__all__ = ["__version__", "in_range"]

__version__ = "0.2.0"

_VERSION = re.compile(
    r"v?(?P<release>\d+(?:\.\d+)*)"
    r"(?:[-_.]?(?P<pre>alpha|beta|preview|pre|rc|a|b|c)[-_.]?(?P<pre_number>\d*))?"
    r"(?P<post>[-_.]?(?:post|rev|r)[-_.]?(?P<post_number>\d*)|-(?P<post_implicit>\d+))?"
    r"(?:[-_.]?(?P<dev>dev)[-_.]?(?P<dev_number>\d*))?"
    r"(?P<local>\+[a-z0-9]+(?:[-_.][a-z0-9]+)*)?",
    re.IGNORECASE,
)
_CLAUSE = re.compile(r"(?P<operator>~=|==|!=|<=|>=|<|>)\s*(?P<version>[^\s,]+)")
_PRE = {"a": 0, "alpha": 0, "b": 1, "beta": 1, "c": 2, "rc": 2, "pre": 2, "preview": 2}
_Key = tuple[tuple[int, ...], tuple[int, int], int, float]


def in_range(version: str, specifier: str) -> bool:
    """Whether a version satisfies every clause of a specifier such as `>=1.16,<2`; an empty one takes all."""
    return all(_satisfies(version, clause.strip()) for clause in specifier.split(",") if clause.strip())


def _satisfies(version: str, clause: str) -> bool:
    match = _CLAUSE.fullmatch(clause)
    if match is None:
        raise ConfigError(f"{clause!r} is no version clause; write it as '>=1.2', '<2', '==1.2.*', '!=1.3' or '~=1.4'")
    operator, wanted = match["operator"], match["version"]
    if wanted.endswith(".*"):
        if operator not in ("==", "!="):
            raise ConfigError(f"{clause!r} is no version clause; '.*' goes with '==' and '!=' only")
        return _starts_with(version, wanted[:-2]) == (operator == "==")
    have, want = _key(version), _key(wanted)
    if operator == "~=":
        release = _parsed(wanted)["release"].split(".")
        if len(release) < 2:
            raise ConfigError(f"{clause!r} is no version clause; '~=' needs two numbers or more, as in '~=1.4'")
        return have >= want and _starts_with(version, ".".join(release[:-1]))
    if operator == "==":
        return have == want
    if operator == "!=":
        return have != want
    if operator == ">=":
        return have >= want
    if operator == "<=":
        return have <= want
    if operator == "<":  # 2.0rc1 is before 2.0, and still not what '<2.0' asks for
        return have < want and not (_before_release(have) and not _before_release(want) and have[0] == want[0])
    # 1.2.post1 is behind 1.2, and still not what '>1.2' asks for
    return have > want and not (have[2] >= 0 and want[2] < 0 and have[:2] == want[:2])


def _parsed(version: str) -> re.Match[str]:
    match = _VERSION.fullmatch(version.strip())
    if match is None:
        raise ConfigError(f"{version!r} is no version number; one reads like '1.16.0', '0.0.1.post1' or '2.0rc1'")
    return match


def _key(version: str) -> _Key:
    """Sorts as PEP 440 does: development < pre-release < release < post-release. The local part is left out."""
    match = _parsed(version)
    release = [int(n) for n in match["release"].split(".")]
    while len(release) > 1 and release[-1] == 0:
        release.pop()
    post = int(match["post_number"] or match["post_implicit"] or 0) if match["post"] else -1
    if match["pre"]:
        pre = (_PRE[match["pre"].lower()], int(match["pre_number"] or 0))
    else:
        pre = (-1, 0) if match["dev"] and post < 0 else (3, 0)
    dev = float(match["dev_number"] or 0) if match["dev"] else float("inf")
    return tuple(release), pre, post, dev


def _before_release(key: _Key) -> bool:
    return key[1] < (3, 0) or key[3] != float("inf")


def _starts_with(version: str, prefix: str) -> bool:
    have = [int(n) for n in _parsed(version)["release"].split(".")]
    want = [int(n) for n in _parsed(prefix)["release"].split(".")]
    return (have + [0] * len(want))[: len(want)] == want
