"""TextWorld: the eight games of TextWorldExpress.

The Java simulator comes from the package `textworld-express`, whose Python code is not used.
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
"""The number of worlds in a fold. The dev worlds start at 10000, the test worlds at 20000."""
_PROGRAM = JavaProgram(
    "TextWorldExpress",
    "textworld",
    "textworld_express",
    "textworld-express.jar",
    "textworldexpress.runtime.PythonInterface",
)


class TextWorld(JavaGame):
    """A TextWorldExpress game; the reward is the increase of the score, which is 1 for a won game.

    A lost game has a total reward of 0.

    A fold has 1000 worlds. The seed draws one; the option `world` selects one, from 0 to 999.
    `params` are parameters of the game, such as "numLocations=3,includeDoors=0".
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
            raise ConfigError(f"fold must be one of {', '.join(FOLDS)}; got {fold!r}")
        self.game, self.fold, self.params = game, fold, str(params)
        self.max_turns = whole_number("max_turns", max_turns, 1)
        self.program.check()

    def on_reset(self, options: Mapping[str, Any]) -> ResetResult:
        world = options.get("world")
        if world is None:
            world = self.rng.randrange(_WORLDS)
        elif type(world) is not int or not 0 <= world < _WORLDS:
            raise OptionError(f"world must be an integer from 0 to {_WORLDS - 1}; got {world!r}")
        self.world = world
        self.score = 0.0
        state = self._load(False)
        task = str(self.machine.call("getTaskDescription")).strip()
        return f"{task}\nYou have {self.max_turns} turns.\n\n{self._scene(state)}", {"world": world}

    def _load(self, solve: bool) -> dict[str, Any]:
        machine = self.borrow()
        problem = machine.call("load", self.game, self.params)
        if problem:
            raise ConfigError(
                f"TextWorldExpress rejects params={self.params!r} for {self.game!r}: {problem}"
            )
        number = FOLDS.index(self.fold) * 10_000 + self.world
        state = machine.call("generateNewGameJSON", number, self.fold, solve)
        return dict(json.loads(state))

    def on_step(self, action: str) -> StepResult:
        state = json.loads(self.machine.call("stepJSON", " ".join(action.split())))
        lost = bool(state["taskfailure"])
        score = 0.0 if lost else min(max(float(state["score"]), 0.0), 1.0)
        reward, self.score = score - self.score, score
        observation = state["observation"].strip()
        if lost:
            return self._ended(self.lost(f"{observation}\nThe game is lost.", reward))
        if state["tasksuccess"] or score >= 1.0:
            return self._ended(self.won(f"{observation}\nThe game is won.", reward))
        result = self.carry_on(self._scene(state), reward)
        return self._ended(result) if result[3] else result

    def _scene(self, state: Mapping[str, Any]) -> str:
        self.possible: list[str] = sorted(set(state["validActions"]))
        return f"{state['observation'].strip()}\nYou can: {', '.join(self.possible)}."

    def _ended(self, result: StepResult) -> StepResult:
        self.give_back()
        return result

    def sample_action(self) -> str:
        return self.action_rng.choice(self.possible)

    def expert(self) -> Iterator[str]:
        """The game's gold solution, computed in a copy of this environment."""
        twin = self.spawn()
        assert isinstance(twin, TextWorld)
        twin.world = self.world
        try:
            twin._load(True)
            solution = twin.machine.strings("getGoldActionSequence")
        finally:
            twin.close()
        yield from solution
