"""Web: sites with many pages, served on loopback by the environment and used in a real Chromium; see `navigation`."""

from __future__ import annotations

__all__: list[str] = []
