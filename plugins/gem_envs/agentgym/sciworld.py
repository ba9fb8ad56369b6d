"""SciWorld: the thirty science tasks of ScienceWorld.

The Java simulator comes from the package `scienceworld`. That package's Python class is not used:
it lists all valid actions in every step, which takes many times as long as the step itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from gem_core.arguments import whole_number
from gem_core.env.base import ResetResult, StepResult
from gem_core.errors import ConfigError, EnvError, OptionError, UnknownNameError
from gem_envs.agentgym.ids import SCIWORLD_TASKS
from gem_envs.agentgym.java import JavaGame, JavaMachine, JavaProgram

__all__ = ["SciWorld"]

SPLITS = ("all", "train", "dev", "test")
SIMPLIFICATIONS = (
    "easy",
    "teleportAction",
    "openDoors",
    "openContainers",
    "selfWateringFlowerPots",
    "noElectricalAction",
)
_PROGRAM = JavaProgram(
    "ScienceWorld",
    "sciworld",
    "scienceworld",
    "scienceworld.jar",
    "scienceworld.runtime.pythonapi.PythonInterface",
)


class SciWorld(JavaGame):
    """A ScienceWorld task; the reward is the increase of the score, which is 1 for a solved task.

    A failed task has a total reward of 0: its last reward is negative and cancels the earlier ones.

    A task has 10 to 1386 variations. The seed draws one from the split; the option `variation`
    selects one. `simplify` lists ScienceWorld's simplifications, such as "easy" or
    "openDoors,teleportAction".
    """

    option_names = frozenset({"variation"})
    action_example = "look around"
    program = _PROGRAM

    def __init__(
        self, task: str, split: str = "all", simplify: str = "", max_turns: int = 100
    ) -> None:
        if task not in SCIWORLD_TASKS:
            raise UnknownNameError("ScienceWorld task", str(task), SCIWORLD_TASKS)
        if split not in SPLITS:
            raise ConfigError(f"split must be one of {', '.join(SPLITS)}; got {split!r}")
        unknown = [
            name for name in str(simplify).split(",") if name and name not in SIMPLIFICATIONS
        ]
        if unknown:
            raise ConfigError(
                "simplify must be a comma-separated list of "
                f"{', '.join(SIMPLIFICATIONS)}; got {simplify!r}"
            )
        self.task, self.split, self.simplify = task, split, str(simplify)
        self.max_turns = whole_number("max_turns", max_turns, 1)
        self.program.check()

    def on_reset(self, options: Mapping[str, Any]) -> ResetResult:
        machine = self.borrow()
        variations = self._variations(machine)
        self.variation = options.get("variation")
        if self.variation is None:
            self.variation = self.rng.choice(variations)
        elif type(self.variation) is not int or self.variation not in variations:
            raise OptionError(
                f"variation must be one of the {len(variations)} variations of {self.task!r} "
                f"in the split {self.split!r}, from {variations[0]} to {variations[-1]}; "
                f"got {self.variation!r}"
            )
        problem = machine.call("load", self.task, self.variation, self.simplify, False)
        if problem:
            raise EnvError(
                f"ScienceWorld cannot load variation {self.variation} of {self.task!r}: {problem}"
            )
        self.score = 0.0
        # This step also clears the score of the previous episode.
        observation = machine.call("step", "look around")
        task = str(machine.call("getTaskDescription")).removeprefix("Task Description:").strip()
        return (
            f"ScienceWorld. {task}\nYou have {self.max_turns} turns. "
            f"Actions, with objects named as you see them:\n{_ACTIONS}\n"
            "'focus on' marks the object the task asks for; "
            "focusing on a wrong one fails the task. "
            "Where a name fits several objects, you are asked which: answer with the number."
            f"\n\n{observation}",
            {"variation": self.variation},
        )

    def on_step(self, action: str) -> StepResult:
        machine = self.machine
        observation = str(machine.call("step", " ".join(action.split())))
        score, over = float(machine.call("getScore")), bool(machine.call("getCompleted"))
        failed = score < 0
        # The simulator also reports its own errors as a negative score.
        if failed and machine.call("agentInterface").get().isInErrorState():
            raise EnvError(
                f"ScienceWorld failed in variation {self.variation} of {self.task!r}: {observation}"
            )
        score = max(score, 0.0)
        reward, self.score = score - self.score, score
        if failed:
            return self._ended(self.lost(f"{observation}\nThe task failed.", reward))
        if over and score >= 1.0:
            return self._ended(self.won(f"{observation}\nThe task is done.", reward))
        if over:
            return self._ended(self.lost(f"{observation}\nThe task is over.", reward))
        result = self.carry_on(observation, reward)
        return self._ended(result) if result[3] else result

    def _ended(self, result: StepResult) -> StepResult:
        self.give_back()
        return result

    def _variations(self, machine: JavaMachine) -> list[int]:
        key = (self.task, self.split)
        if key not in _variations:
            count = int(machine.call("getTaskMaxVariations", self.task))
            _variations[self.task, "all"] = list(range(count))
            if self.split != "all":
                machine.call("load", self.task, 0, "", False)
                listed = machine.call(f"getVariations{self.split.capitalize()}").toString()
                _variations[key] = [int(number) for number in re.findall(r"\d+", listed)]
            if not _variations[key]:
                raise ConfigError(f"the split {self.split!r} of {self.task!r} has no variations")
        return _variations[key]

    def valid_actions(self) -> list[str]:
        """Return every action that is possible now: hundreds, computed on each call."""
        return self.machine.strings("getValidActionObjectCombinations")

    def sample_action(self) -> str:
        machine = self.machine
        templates = [t for t in machine.strings("getPossibleActions") if t not in _NOT_SAMPLED]
        objects = machine.strings("getPossibleObjects")
        words = self.action_rng.choice(templates).split(" ")
        return " ".join(
            self.action_rng.choice(objects) if word == "OBJ" else word for word in words
        )

    def expert(self) -> Iterator[str]:
        """ScienceWorld's gold solution, computed in another JVM."""
        machine = self.program.borrow()
        try:
            machine.call("load", self.task, self.variation, self.simplify, True)
            solution = machine.strings("getGoldActionSequence")
        finally:
            machine.give_back()
        yield from solution


_variations: dict[tuple[str, str], list[int]] = {}
_NOT_SAMPLED = frozenset({"reset task", "task", "wait"})
"""Actions the random player skips: they restart, repeat the task, or pass ten time steps."""
_ACTIONS = (
    "open / close OBJ, go LOCATION, look around, look at OBJ, look in OBJ, inventory, task\n"
    "pick up OBJ, put down OBJ, move OBJ to OBJ, pour OBJ into OBJ, dunk OBJ into OBJ, mix OBJ, "
    "use OBJ on OBJ\n"
    "activate / deactivate OBJ, connect OBJ to OBJ, disconnect OBJ, read OBJ, eat OBJ, flush OBJ, "
    "focus on OBJ, wait, wait1"
)
