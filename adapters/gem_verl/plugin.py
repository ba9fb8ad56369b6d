"""Plugin: the module verl imports in each of its processes, by the entry point `verl.plugins`. Registers gem with verl.

verl swallows plugin errors, so they are logged here, and `check_registered` verifies registration before training.
"""

from __future__ import annotations

import logging

_log = logging.getLogger("gem_verl")


def register() -> None:
    """Register the agent loop, the estimators and the trainers; registering twice changes nothing."""
    from gem_verl import (
        rollout,  # noqa: F401 - importing it registers the agent loop
    )
    from gem_verl.channel import register_estimators
    from gem_verl.trainer import register_trainers

    register_estimators()
    register_trainers()


try:
    register()
except Exception:
    _log.exception("gem could not register itself with verl, which continues without it")
    raise
