"""Plugin: what verl imports in each of its processes, by the entry point `verl.plugins`. Registers all gem has for verl.

verl logs what a plugin raises at level DEBUG and goes on without it, so an error is also logged here, where it is seen; and
`check_registered` refuses to train without it.
"""

from __future__ import annotations

import logging

_log = logging.getLogger("gem_verl")


def register() -> None:
    """The agent loop, the estimators and the trainers; a second time changes nothing."""
    from gem_verl import (
        rollout,  # noqa: F401 - importing it registers the agent loop
    )
    from gem_verl.advantage import register_estimators
    from gem_verl.trainer import register_trainers

    register_estimators()
    register_trainers()


try:
    register()
except Exception:
    _log.exception("gem could not register itself with verl, which will go on without it")
    raise
