"""Web navigation: multi-page sites on a loopback server, used through a real Chromium."""

from __future__ import annotations

__all__: list[str] = []
