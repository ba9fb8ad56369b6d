"""Local server: gem's own server of the Tinker API, over a small model on this machine.

The real `tinker` client speaks to it unmodified. The conformance harness, the tests and the recipes
use it, because Tinker itself is a remote service. It is not part of Tinker.

    python -m gem_tinker.local_server --model tiny --port 8011
"""

from __future__ import annotations

from gem_tinker.local_server.http import LocalServer

__all__ = ["LocalServer"]
