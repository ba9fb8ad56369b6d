"""Adapter declaration: facts about one trainer that are readable without importing it.

Every adapter package declares one `ADAPTER` and registers it. Listing adapters and `probe` only
read package metadata.
"""

from __future__ import annotations

import fnmatch
import importlib.metadata
import importlib.util
import platform
import sys
from dataclasses import dataclass
from typing import Literal

from gem_core.adapter_kit.versions import in_range
from gem_core.errors import ConfigError, RegistrationError
from gem_core.plugins.catalog import Catalog
from gem_core.plugins.manager import on_registration

__all__ = [
    "Adapter",
    "AdapterStatus",
    "Capabilities",
    "adapters",
    "probe",
    "register_adapter",
    "require",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What the trainer supports. The adapter raises `ConfigError` for anything else."""

    several_sequences: bool
    """An episode with a rewritten context may become several sequences."""
    masked_turns: bool
    """A sequence may contain untrained turns, whose rewards count for earlier turns."""
    failed_episodes: bool
    """A failed episode may become a padding sequence, or be dropped."""
    groups: bool
    """Episodes of one seed can be identified, for estimators with a group baseline."""
    critic_values: bool
    """The trainer has a critic, which provides one value per turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """One trainer: its adapter package, the supported versions, and how to install it."""

    name: str
    """The name in `gem-rl adapters` and configuration files."""
    package: str
    """The import name of the adapter, such as `gem_trl`."""
    distribution: str
    """The name of the framework on the package index."""
    import_name: str
    """The import name of the framework."""
    extra: str
    """The extra of gem that installs the framework."""
    versions: str
    """The supported versions of the framework, as a specifier."""
    python: str
    """The supported Python versions, as a specifier."""
    platforms: tuple[str, ...]
    """The supported platforms: patterns of `system-machine`, such as `linux-x86_64`."""
    needs: tuple[tuple[str, str], ...] = ()
    """(distribution, specifier) of packages that the framework imports but does not declare."""
    install: tuple[str, ...]
    """The commands that install both from a checkout, in order."""
    capabilities: Capabilities
    status: Literal["planned", "ready"]
    """`planned`: only declared. `ready`: it trains, and the conformance kit passes."""
    summary: str
    """One line on where the framework calls the adapter."""
    gpu: str = "no"
    """What was run on a GPU, with the versions."""


@dataclass(frozen=True, slots=True)
class AdapterStatus:
    """The result of `probe`."""

    adapter: Adapter
    installed: str | None
    """The framework's version; None: not installed, `unknown`: importable without metadata."""
    supported: bool
    """Whether the adapter supports that version."""
    python_fits: bool
    platform_fits: bool
    missing: tuple[str, ...]
    """What must be installed or changed before it can train, one phrase each."""

    @property
    def ready(self) -> bool:
        """Whether the adapter can train on this machine now."""
        return self.adapter.status == "ready" and not self.missing

    @property
    def installable(self) -> bool:
        """Whether the framework can be installed on this machine with this Python."""
        return self.python_fits and self.platform_fits


adapters: Catalog[Adapter] = Catalog("adapter", "gem-rl adapters")


def register_adapter(adapter: Adapter, *, replace: bool = False) -> Adapter:
    """Register an adapter by its name; plugins use the hook `register_adapters(register)`."""
    if not isinstance(adapter, Adapter):
        raise RegistrationError(
            f"register_adapter needs a gem_core.adapter_kit.declaration.Adapter, got {adapter!r}"
        )
    for specifier in (adapter.versions, adapter.python):
        in_range("0", specifier)  # raises now if it is invalid
    adapters.add(adapter.name, adapter, replace=replace)
    return adapter


on_registration("register_adapters", register_adapter)


def probe(adapter: Adapter) -> AdapterStatus:
    """Return what is installed and what is missing, without importing the framework."""
    installed = _installed(adapter.distribution, adapter.import_name)
    supported = (
        installed is not None and installed != "unknown" and in_range(installed, adapter.versions)
    )
    python_fits = in_range(platform.python_version(), adapter.python)
    here = f"{sys.platform}-{platform.machine()}"
    platform_fits = any(fnmatch.fnmatchcase(here.lower(), pattern) for pattern in adapter.platforms)
    missing = []
    if not python_fits:
        missing.append(f"Python {adapter.python} (this is {platform.python_version()})")
    if not platform_fits:
        missing.append(f"platform {' or '.join(adapter.platforms)} (this is {here})")
    if installed is None:
        missing.append(f"{adapter.distribution}{adapter.versions}")
    elif not supported:
        missing.append(f"{adapter.distribution}{adapter.versions} (installed: {installed})")
    for distribution, versions in adapter.needs:
        version = _installed(distribution)
        if version is None:
            missing.append(f"{distribution}{versions}")
        elif not in_range(version, versions):
            missing.append(f"{distribution}{versions} (installed: {version})")
    return AdapterStatus(adapter, installed, supported, python_fits, platform_fits, tuple(missing))


def require(adapter: Adapter) -> None:
    """Raise `ConfigError` for an unsupported version; a checkout without metadata passes."""
    status = probe(adapter)
    if status.installed != "unknown" and not status.supported:
        raise ConfigError(
            f"{adapter.package} supports {adapter.distribution} {adapter.versions}, "
            f"installed: {status.installed or 'none'}; "
            "install a supported version, or another version of gem"
        )


def _installed(distribution: str, import_name: str = "") -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        if not import_name:
            return None
        # A checkout on PYTHONPATH has no metadata. find_spec does not import a top-level module; an
        # empty folder of that name is a namespace package without origin.
        spec = importlib.util.find_spec(import_name)
        return "unknown" if spec is not None and spec.origin is not None else None
