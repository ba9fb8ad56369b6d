"""BabyAI experts: minigrid's bot, with its moves as text, and rules for the two other levels."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from minigrid.core.actions import Actions
from minigrid.utils.baby_ai_bot import BabyAIBot

from gem_envs.agentgym.babyai import BabyAI

__all__ = ["SEEDS", "expert_for"]

SEEDS = {
    "OpenDoorsOrderN4Debug": 3,
    "GoToImpUnlock": 2,
    "UnblockPickup": 1,
    "Unlock": 2,
    "SynthSeq": 1,
    "PutNextS7N4Carrying": 0,
}
"""The seeds of levels where the bot fails or hangs with the default seed 1."""
_WORDS = {
    Actions.left: "turn left",
    Actions.right: "turn right",
    Actions.forward: "move forward",
    Actions.drop: "drop",
    Actions.toggle: "toggle",
}


def expert_for(level: str, env: BabyAI) -> Iterator[str]:
    """Yield the actions of one episode; call it after `reset`."""
    return {"KeyInBox": _key_in_box, "PutNextS7N4Carrying": _put_next}.get(level, _bot)(env)


def _bot(env: BabyAI) -> Iterator[str]:
    bot: Any = BabyAIBot(env.world)
    move = None
    while True:
        move = bot.replan(move)
        if move == Actions.pickup:
            (front,) = (thing for thing in env.things if (thing.ahead, thing.right) == (1, 0))
            yield f"pick up {front.name}"
        else:
            yield _WORDS[move]


def _key_in_box(env: BabyAI) -> Iterator[str]:
    """Open the box, take the key, open the door."""
    box = yield from _search(env, r"go to \w+ box")
    yield box
    yield "toggle"
    yield next(action for action in env.possible if re.match(r"pick up \w+ key", action))
    yield (yield from _search(env, "toggle and go through"))


def _put_next(env: BabyAI) -> Iterator[str]:
    """Go to the object, step back once, and drop the carried object into the gap."""
    target = str(env.world.mission).partition(" next to ")[2].split(" ", 1)[1]
    yield (yield from _search(env, f"go to {target} "))
    yield from ("turn right", "turn right", "move forward", "turn right", "turn right", "drop")


def _search(env: BabyAI, wanted: str) -> Iterator[str]:
    """Walk around until a matching action is possible, and return it."""
    for step in range(60):
        match = next((action for action in env.possible if re.match(wanted, action)), None)
        if match is not None:
            return match
        door = next((action for action in env.possible if "through" in action), None)
        ahead = step % 5 == 4 and "move forward" in env.possible
        yield door if door else "move forward" if ahead else "turn left"
    raise AssertionError(f"no action matches {wanted!r}")
