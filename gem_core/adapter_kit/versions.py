"""Versions: compare a version with a specifier."""

from __future__ import annotations

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from gem_core.errors import ConfigError

__all__ = ["in_range"]


def in_range(version: str, specifier: str) -> bool:
    """Whether a version, also a pre-release, satisfies a specifier such as `>=1.16,<2`."""
    try:
        return SpecifierSet(specifier).contains(Version(version), prereleases=True)
    except InvalidSpecifier:
        raise ConfigError(
            f"{specifier!r} is not a version specifier; use '>=1.2,<2', '==1.2.*' or '~=1.4'"
        ) from None
    except InvalidVersion:
        raise ConfigError(
            f"{version!r} is not a version; use '1.16.0', '0.0.1.post1' or '2.0rc1'"
        ) from None
