"""URL of a server, with or without credentials."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit, urlunsplit

__all__ = ["Credentials", "split_credentials"]

Credentials = tuple[str, str]
"""User and password."""


def split_credentials(url: str) -> tuple[str, Credentials | None]:
    """Split off user and password, so no message shows them; return (URL, credentials)."""
    parts = urlsplit(url)
    clean = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    if not (parts.username or parts.password):
        return clean, None
    return clean, (unquote(parts.username or ""), unquote(parts.password or ""))
