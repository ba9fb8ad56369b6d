"""Address of an environment server."""

from __future__ import annotations

from typing import Any

from gem_http.url import Credentials, split_credentials

from gem_core.errors import ConfigError

__all__ = ["checked_url"]


def checked_url(url: Any) -> tuple[str, Credentials | None]:
    """Return the URL of a server without user and password, and these; raise `ConfigError`."""
    try:
        if isinstance(url, str) and url.startswith(("http://", "https://")):
            clean, credentials = split_credentials(url)
            return clean.rstrip("/"), credentials
    except ValueError:  # for example "http://[::1"
        pass
    shown = url.rpartition("@")[2] if isinstance(url, str) else url
    raise ConfigError(
        f"url must be the server's address, such as url='http://host:8000'; got {shown!r}"
    )
