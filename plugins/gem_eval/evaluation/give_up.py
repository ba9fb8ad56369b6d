"""Consecutive failures: end a run whose policy or environment fails every time."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from gem_core.errors import EnvError, PolicyError
from gem_core.types import Episode, Failure, StopReason

__all__ = ["ConsecutiveFailures", "place_of"]

_ENV_STOPS = (StopReason.ENV_ERROR, StopReason.ENV_INVALID, StopReason.ENV_DEADLINE)
_POLICY_STOPS = (StopReason.POLICY_ERROR, StopReason.POLICY_DEADLINE)
_FRAME = re.compile(r'^  File "(.+)", line (\d+), in (.+)$', re.MULTILINE)
_ENGINE = frozenset({"gem_core", "gem_execution"})
"""The packages that call environments."""


class ConsecutiveFailures:
    """Counts failures in a row: those of the policy, and those of each environment."""

    def __init__(self, most: int | None, path: Path) -> None:
        """`most`: the number of failures that ends the run; None never does."""
        self._most, self._path = most, path
        self._of_policy = 0
        self._of_env: Counter[str] = Counter()

    def check(self, episode: Episode) -> None:
        """Count an episode; raise `PolicyError` or `EnvError` if too many failed in a row."""
        env_id = episode.played_id
        self._of_policy = self._of_policy + 1 if episode.stop in _POLICY_STOPS else 0
        if episode.stop in _ENV_STOPS:
            self._of_env[env_id] += 1
        elif not episode.failed:
            self._of_env[env_id] = 0
        if self._most is None:
            return
        resume = (
            f"Finished episodes are in {self._path}; fix the cause and run again, without "
            "--overwrite, to resume"
        )
        if self._of_policy >= self._most:
            raise PolicyError(
                f"{self._of_policy} episodes in a row failed, the last with: {episode.failure}. "
                f"{resume}"
            )
        if self._of_env[env_id] >= self._most:
            raise EnvError(
                f"{self._of_env[env_id]} episodes of {env_id} in a row failed, the last with: "
                f"{episode.failure}{place_of(episode.failure)}. `gem-rl check {env_id}` plays it "
                f"without a model. {resume}"
            )


def place_of(failure: Failure | None) -> str:
    """Return the line of the environment's own code in a traceback, or "" without one.

    The engine calls the environment, which may call a library that raises. The line is the
    innermost one in the file that the engine called last.
    """
    frames = _FRAME.findall("" if failure is None else failure.traceback)
    of_engine = [not _ENGINE.isdisjoint(Path(file).parts) for file, _, _ in frames]
    called = [frames[i][0] for i in range(1, len(frames)) if of_engine[i - 1] and not of_engine[i]]
    lines = [frame for frame in frames if called and frame[0] == called[-1]]
    return " (in {}, line {}, {})".format(*lines[-1]) if lines else ""
