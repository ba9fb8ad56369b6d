"""TextWorld: the eight games of TextWorldExpress: cooking, tidying up, finding a coin, reading a map, sums, sorting and more.

The simulator runs in Java, from the package `textworld-express`, of which nothing else is used.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from gem_core.arguments import whole_number
from gem_core.env.base import ResetResult, StepResult
from gem_core.errors import ConfigError, OptionError, UnknownNameError
from gem_envs.agentgym.ids import TEXTWORLD_GAMES
from gem_envs.agentgym.java import JavaGame, JavaProgram

__all__ = ["TextWorld"]

FOLDS = ("train", "dev", "test")
_WORLDS = 1000
"""How many worlds a fold has; those of dev begin at 10000, those of test at 20000."""
_PROGRAM = JavaProgram(
    "TextWorldExpress",
    "textworld",
    "textworld_express",
    "textworld-express.jar",
    "textworldexpress.runtime.PythonInterface",
)


class TextWorld(JavaGame):
    """Pays what the game's score rises by, out of 1; a game is won at 1, and a game that is lost is worth 0 in all.

    A fold has 1000 worlds; the seed draws one, and the option `world` names one, from 0 to 999. `params` goes to the game,
    such as "numLocations=3,includeDoors=0".
    """

    option_names = frozenset({"world"})
    action_example = "look around"
    program = _PROGRAM

    def __init__(
        self, game: str, fold: str = "train", params: str = "", max_turns: int = 50
    ) -> None:
        if game not in TEXTWORLD_GAMES:
            raise UnknownNameError("TextWorldExpress game", str(game), TEXTWORLD_GAMES)
        if fold not in FOLDS:
            raise ConfigError(f"fold must be one of {', '.join(FOLDS)}; given: {fold!r}")
        self.game, self.fold, self.params = game, fold, str(params)
        self.max_turns = whole_number("max_turns", max_turns, 1)
        self.program.check()

    def on_reset(self, options: Mapping[str, Any]) -> ResetResult:
        world = options.get("world")
        if world is None:
            world = self.rng.randrange(_WORLDS)
        elif type(world) is not int or not 0 <= world < _WORLDS:
            raise OptionError(
                f"world must be a whole number from 0 to {_WORLDS - 1}; given: {world!r}"
            )
        self.world = world
        self.score = 0.0
        told = self._load(False)
        task = str(self.machine.call("getTaskDescription")).strip()
        return f"{task}\nYou have {self.max_turns} turns.\n\n{self._scene(told)}", {"world": world}

    def _load(self, solve: bool) -> dict[str, Any]:
        machine = self.borrow()
        refused = machine.call("load", self.game, self.params)
        if refused:
            raise ConfigError(
                f"TextWorldExpress refuses params={self.params!r} for {self.game!r}: {refused}"
            )
        number = FOLDS.index(self.fold) * 10_000 + self.world
        told: dict[str, Any] = json.loads(
            machine.call("generateNewGameJSON", number, self.fold, solve)
        )
        return told

    def on_step(self, action: str) -> StepResult:
        told = json.loads(self.machine.call("stepJSON", " ".join(action.split())))
        lost = bool(told["taskfailure"])
        score = 0.0 if lost else min(max(float(told["score"]), 0.0), 1.0)
        reward, self.score = score - self.score, score
        if lost:
            return self._ended(
                self.lost(f"{told['observation'].strip()}\nThe game is lost.", reward)
            )
        if told["tasksuccess"] or score >= 1.0:
            return self._ended(self.won(f"{told['observation'].strip()}\nThe game is won.", reward))
        result = self.carry_on(self._scene(told), reward)
        return self._ended(result) if result[3] else result

    def _scene(self, told: Mapping[str, Any]) -> str:
        self.possible: list[str] = sorted(set(told["validActions"]))
        return f"{told['observation'].strip()}\nYou can: {', '.join(self.possible)}."

    def _ended(self, result: StepResult) -> StepResult:
        self.give_back()
        return result

    def sample_action(self) -> str:
        return self.action_rng.choice(self.possible)

    def expert(self) -> Iterator[str]:
        """The game's own solution, worked out in a twin."""
        twin = self.spawn()
        assert isinstance(twin, TextWorld)
        twin.world = self.world
        try:
            twin._load(True)
            solution = twin.machine.strings("getGoldActionSequence")
        finally:
            twin.close()
        yield from solution
