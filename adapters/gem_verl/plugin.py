"""Plugin: registers gem with verl, which imports this module in each of its processes.

verl finds it by the entry point `verl.plugins`. verl swallows plugin errors, so we log them here
and verify registration before training (`check_registered`).
"""

from __future__ import annotations

import logging

_log = logging.getLogger("gem_verl")


def register() -> None:
    """Register agent loop, estimators, trainers and attention; a second call changes nothing."""
    from gem_verl import rollout  # noqa: F401 - importing it registers the agent loop
    from gem_verl.attention import register_attention
    from gem_verl.channel import register_estimators
    from gem_verl.trainer import register_trainers

    register_estimators()
    register_trainers()
    register_attention()


try:
    register()
except Exception:
    _log.exception("gem could not register itself with verl; verl continues without it")
    raise
