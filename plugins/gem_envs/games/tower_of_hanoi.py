"""TowerOfHanoi: move a tower of disks to another peg, never a larger disk onto a smaller one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gem_core.arguments import whole_number
from gem_core.env.base import ResetResult, StepResult
from gem_core.errors import ConfigError
from gem_envs.games.base import Game, draws

__all__ = ["TowerOfHanoi"]

_RANDOM = ((3, 10), (4, 20), (5, 35))
"""(num_disks, max_turns)"""
_MOVES = {form: (a, b) for a in "ABC" for b in "ABC" for form in (f"{a} {b}", f"{a}{b}")}


class TowerOfHanoi(Game):
    """Tower of Hanoi: 1 for all disks on C, at the last turn the fraction of disks on C."""

    action_example = "from to"

    @draws("num_disks", "max_turns")
    def __init__(self, num_disks: int = 3, max_turns: int = 10, randomize: bool = False) -> None:
        self.num_disks = whole_number("num_disks", num_disks, 1, 9)
        self.max_turns = whole_number("max_turns", max_turns, 1)
        if max_turns < 2**num_disks - 1:
            raise ConfigError(
                f"{num_disks} disks need {2**num_disks - 1} moves, got max_turns={max_turns}"
            )
        self.randomize = randomize

    def on_reset(self, options: Mapping[str, Any]) -> ResetResult:
        if self.randomize:
            self.num_disks, self.max_turns = self.rng.choice(_RANDOM)
        self.pegs: dict[str, list[int]] = {
            "A": list(range(self.num_disks, 0, -1)),
            "B": [],
            "C": [],
        }
        self.drawn = {
            peg: " ".join([f"{peg}:", *map(str, disks)]) for peg, disks in self.pegs.items()
        }
        return (
            f"Tower of Hanoi: move all {self.num_disks} disks from peg A to peg C. "
            "Disk 1 is the smallest. A move takes the top disk of one peg to another peg; "
            "a disk never lies on a smaller one. "
            "Name the two pegs, as in 'B A' for a move from B to A. "
            f"You have {self.max_turns} moves. Disks are listed from the bottom up.\n"
            f"{self._board()}",
            {},
        )

    def on_step(self, action: str) -> StepResult:
        move = _MOVES.get(action) or _MOVES.get("".join(action.upper().replace(",", " ").split()))
        if move is None:
            return self.unreadable(action, "two of the pegs A, B and C")
        source, target = move
        taken, onto = self.pegs[source], self.pegs[target]
        if source == target:
            feedback = "A move needs two different pegs."
        elif not taken:
            feedback = f"Peg {source} is empty."
        elif onto and onto[-1] < taken[-1]:
            feedback = f"Disk {taken[-1]} is larger than disk {onto[-1]} on {target}."
        else:
            disk = taken.pop()
            onto.append(disk)
            self.drawn[source] = self.drawn[source][:-2]
            self.drawn[target] += f" {disk}"
            if target == "C" and len(onto) == self.num_disks:
                return self.won(f"All disks are on C.\n{self._board()}")
            feedback = f"You moved disk {disk} from {source} to {target}."
        feedback = f"{feedback}\n{self._board()}"
        if self.turn + 1 < self.max_turns:
            return feedback, 0.0, False, False, {}
        return self.out_of_turns(feedback, len(self.pegs["C"]) / self.num_disks)

    def _board(self) -> str:
        return "\n".join(self.drawn.values())

    def sample_action(self) -> str:
        pegs = self.pegs
        legal = [
            f"{source} {target}"
            for source in "ABC"
            for target in "ABC"
            if source != target
            and pegs[source]
            and (not pegs[target] or pegs[target][-1] > pegs[source][-1])
        ]
        return self.action_rng.choice(legal)
