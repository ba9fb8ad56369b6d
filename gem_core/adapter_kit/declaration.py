"""Adapter: what connects gem to one trainer, as facts that need no framework.

Every adapter package declares one `ADAPTER` and registers it. Listing adapters, or asking with `probe` what is installed,
reads package metadata only: no framework is imported, however many are there.
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
    """What the framework's way in allows. A golden case outside of it is refused, with the reason, before the first step."""

    several_sequences: bool
    """An episode whose context is rewritten becomes several rows."""
    masked_turns: bool
    """A turn may stand in a row untrained, its reward flowing to the turns before it."""
    failed_episodes: bool
    """An episode with unknown rewards may reach the trainer as a placeholder, or be left out."""
    groups: bool
    """Several episodes from one start can be told from the others, for estimators with a group baseline."""
    critic_values: bool
    """The estimator is given a critic's values, one per turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """One trainer: where its adapter is, which versions it fits, and how it is installed."""

    name: str
    """What `gem-rl adapters` and configuration files call it."""
    package: str
    """The import name of the adapter, such as `gem_trl`."""
    distribution: str
    """What the package index calls the framework."""
    import_name: str
    """What Python calls the framework."""
    extra: str
    """The extra of this distribution that installs it."""
    versions: str
    """The framework's versions the adapter fits, as a specifier."""
    python: str
    """The Python versions on which both can be installed, as a specifier."""
    platforms: tuple[str, ...]
    """Where the framework can be had: patterns over `system-machine`, as in `linux-x86_64`."""
    needs: tuple[tuple[str, str], ...] = ()
    """(distribution, specifier) pairs the framework imports without declaring them."""
    install: tuple[str, ...]
    """The lines that install both from a checkout, in order."""
    capabilities: Capabilities
    status: Literal["planned", "ready"]
    """`planned`: these facts are all there is yet. `ready`: it trains, and the conformance kit passes."""
    summary: str
    """Where the framework calls the adapter, in one line."""


@dataclass(frozen=True, slots=True)
class AdapterStatus:
    """What `probe` found on this machine."""

    adapter: Adapter
    installed: str | None
    """The framework's version; None where it is not installed, `unknown` where it is importable without metadata."""
    supported: bool
    """Whether that version is one the adapter fits."""
    python_fits: bool
    platform_fits: bool
    missing: tuple[str, ...]
    """What has to be installed or changed before it can train, one phrase each."""

    @property
    def ready(self) -> bool:
        """Whether an episode could be trained on here and now."""
        return self.adapter.status == "ready" and not self.missing

    @property
    def can_be_had(self) -> bool:
        """Whether the adapter's install lines can help on this machine and with this Python."""
        return self.python_fits and self.platform_fits


adapters: Catalog[Adapter] = Catalog("adapter", "gem-rl adapters")


def register_adapter(adapter: Adapter, *, replace: bool = False) -> Adapter:
    """Registers an adapter under its name; plugins call it through `register_adapters(register)`."""
    if not isinstance(adapter, Adapter):
        raise RegistrationError(
            f"{adapter!r} is no adapter; give a gem_core.adapter_kit.declaration.Adapter"
        )
    in_range(
        "0", adapter.versions
    )  # a specifier that cannot be read is refused now, not when somebody asks
    in_range("0", adapter.python)
    adapters.add(adapter.name, adapter, replace=replace)
    return adapter


on_registration("register_adapters", register_adapter)


def probe(adapter: Adapter) -> AdapterStatus:
    """What of an adapter's framework is installed here, and what is missing, without importing it."""
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
        missing.append(f"a machine of {' or '.join(adapter.platforms)} (this is {here})")
    if installed is None:
        missing.append(f"{adapter.distribution}{adapter.versions}")
    elif not supported:
        missing.append(f"{adapter.distribution}{adapter.versions} (installed: {installed})")
    for distribution, versions in adapter.needs:
        have = _installed(distribution)
        if have is None:
            missing.append(f"{distribution}{versions}")
        elif not in_range(have, versions):
            missing.append(f"{distribution}{versions} (installed: {have})")
    return AdapterStatus(adapter, installed, supported, python_fits, platform_fits, tuple(missing))


def require(adapter: Adapter) -> None:
    """Refuses an installed framework that the adapter does not fit; one without metadata, such as a checkout, passes."""
    status = probe(adapter)
    if status.installed != "unknown" and not status.supported:
        raise ConfigError(
            f"{adapter.package} fits {adapter.distribution} {adapter.versions}; installed is {status.installed or 'none'}. "
            "Install one of those, or another version of gem"
        )


def _installed(distribution: str, import_name: str = "") -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        if not import_name:
            return None
        # A checkout on PYTHONPATH has no metadata. Finding a top-level module does not run it; a bare folder of that
        # name, which Python would take for a namespace package, has no origin.
        found = importlib.util.find_spec(import_name)
        return "unknown" if found is not None and found.origin is not None else None
