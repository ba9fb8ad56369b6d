"""Versions: whether an installed version lies in a range."""

from __future__ import annotations

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from gem_core.errors import ConfigError

__all__ = ["in_range"]


def in_range(version: str, specifier: str) -> bool:
    """Whether `version` satisfies a specifier such as `>=1.16,<2`; pre-releases count, an empty specifier takes all."""
    try:
        return SpecifierSet(specifier).contains(Version(version), prereleases=True)
    except InvalidSpecifier:
        raise ConfigError(
            f"{specifier!r} is not a version specifier; write it as '>=1.2,<2', '==1.2.*' or '~=1.4'"
        ) from None
    except InvalidVersion:
        raise ConfigError(
            f"{version!r} is not a version; write it as '1.16.0', '0.0.1.post1' or '2.0rc1'"
        ) from None
