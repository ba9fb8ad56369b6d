"""Environment ids of the AgentGym scenarios.

They are listed here by hand, so listing them imports no package and starts no Java.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["BABYAI_LEVELS", "SCIWORLD_TASKS", "TEXTWORLD_GAMES", "register_scenarios"]

# As in AgentGym, the action is on its own line after a thought. Text without such a line is the
# action itself.
_REACT = (("react", {"place": "observation", "on_error": "pass"}),)

BABYAI_LEVELS = {
    "GoToRedBallGrey": (64, "go to the red ball among grey things"),
    "GoToRedBall": (64, "go to the red ball among distractors"),
    "GoToRedBallNoDists": (64, "go to the red ball in an empty room"),
    "GoToObjS6": (64, "go to the only thing in a small room"),
    "GoToLocalS8N7": (64, "go to one of seven things in a room"),
    "GoToObjMazeS7": (128, "go to a thing in a maze of rooms"),
    "GoToImpUnlock": (128, "go to a thing behind a door that must be unlocked"),
    "GoToSeqS5R2": (128, "go to several things in a given order"),
    "GoToRedBlueBall": (64, "go to the red or the blue ball"),
    "GoToDoor": (64, "go to a door of a given colour"),
    "GoToObjDoor": (64, "go to a thing or a door"),
    "Open": (128, "open a door in a maze of rooms"),
    "OpenRedDoor": (64, "open the red door"),
    "OpenDoorLoc": (64, "open a door given by colour or position"),
    "OpenRedBlueDoorsDebug": (128, "open the red door, then the blue one"),
    "OpenDoorsOrderN4Debug": (128, "open one or two of four doors in order"),
    "Pickup": (128, "pick up a thing in a maze of rooms"),
    "UnblockPickup": (128, "pick up a thing behind blocked doors"),
    "PickupLoc": (64, "pick up a thing given by its position"),
    "PickupDistDebug": (64, "pick up a thing among distractors"),
    "PickupAbove": (128, "pick up a thing in the room above"),
    "PutNextLocalS6N4": (64, "put one thing next to another"),
    "PutNextS7N4Carrying": (128, "put the carried thing next to another"),
    "Unlock": (128, "unlock a door in a maze of rooms"),
    "UnlockLocalDist": (128, "unlock a door in a room with distractors"),
    "KeyInBox": (128, "unlock a door with a key from a box"),
    "UnlockPickupDist": (128, "unlock a door and pick up a thing among distractors"),
    "BlockedUnlockPickup": (128, "clear and unlock a door, pick up the box behind it"),
    "UnlockToUnlock": (128, "unlock a door to get the key of another"),
    "ActionObjDoor": (64, "go to, pick up or open what is named"),
    "FindObjS7": (128, "find a thing in unexplored rooms and pick it up"),
    "KeyCorridorS6R3": (128, "find the key to a room off a corridor"),
    "OneRoomS20": (128, "pick up a ball in one large room"),
    "MoveTwoAcrossS8N9": (128, "exchange things between two rooms"),
    "SynthS5R2": (128, "any single instruction in small rooms"),
    "SynthLoc": (128, "any single instruction, with positions"),
    "SynthSeq": (128, "several instructions in order"),
    "MiniBossLevel": (128, "any instructions, in four small rooms"),
    "BossLevel": (128, "any instructions, with locked doors"),
    "BossLevelNoUnlock": (128, "any instructions, without locked doors"),
}
"""AgentGym's forty levels in its order, with their turn limits and summaries.

The limit is lower for missions in the first room.
"""

SCIWORLD_TASKS = {
    "boil": 200,
    "melt": 150,
    "freeze": 200,
    "change-the-state-of-matter-of": 150,
    "use-thermometer": 100,
    "measure-melting-point-known-substance": 100,
    "measure-melting-point-unknown-substance": 200,
    "power-component": 100,
    "power-component-renewable-vs-nonrenewable-energy": 100,
    "test-conductivity": 100,
    "test-conductivity-of-unknown-substances": 100,
    "find-living-thing": 100,
    "find-non-living-thing": 100,
    "find-plant": 100,
    "find-animal": 100,
    "grow-plant": 150,
    "grow-fruit": 200,
    "chemistry-mix": 100,
    "chemistry-mix-paint-secondary-color": 100,
    "chemistry-mix-paint-tertiary-color": 100,
    "lifespan-longest-lived": 100,
    "lifespan-shortest-lived": 100,
    "lifespan-longest-lived-then-shortest-lived": 100,
    "identify-life-stages-1": 100,
    "identify-life-stages-2": 100,
    "inclined-plane-determine-angle": 150,
    "inclined-plane-friction-named-surfaces": 400,
    "inclined-plane-friction-unnamed-surfaces": 300,
    "mendelian-genetics-known-plant": 300,
    "mendelian-genetics-unknown-plant": 300,
}
"""The thirty tasks with their turn limits: ScienceWorld's 100, or more for long gold solutions."""

TEXTWORLD_GAMES = {
    "cookingworld": ("CookingWorld", "cook a meal from the recipe in the cookbook", 150),
    "twc": ("CommonSense", "put things where they belong", 50),
    "coin": ("CoinCollector", "find a coin in a house", 50),
    "mapreader": ("MapReader", "fetch a coin with the help of a map", 50),
    "arithmetic": ("Arithmetic", "solve a sum and choose by its result", 20),
    "sorting": ("Sorting", "put things into a box in increasing order of quantity", 30),
    "simonsays": ("SimonSays", "follow Simon's commands", 20),
    "peckingorder": ("PeckingOrder", "follow a book of instructions that changes", 30),
}
"""The TextWorldExpress games: the name in the id, a summary, and the turn limit."""

_TEXTCRAFT = {
    "": {"min_depth": 2, "max_turns": 50},
    "-depth1": {"min_depth": 1, "max_depth": 1, "max_turns": 10},
    "-depth2": {"min_depth": 2, "max_depth": 2, "max_turns": 20},
    "-depth3": {"min_depth": 3, "max_depth": 3, "max_turns": 50},
    "-depth4": {"min_depth": 4, "max_depth": 4, "max_turns": 50},
}


def register_scenarios(register: Callable[..., Any]) -> None:
    """Register BabyAI, SciWorld, TextCraft and the games of TextWorldExpress."""
    for level, (turns, summary) in BABYAI_LEVELS.items():
        register(
            f"babyai:{level}-v0",
            "gem_envs.agentgym.babyai:BabyAI",
            kwargs={"level": level, "max_turns": turns},
            wrappers=_REACT,
            summary=summary,
            turns=turns,
            reward="terminal: 1 for the mission",
            data="generated by minigrid",
            extra="babyai",
            tags=("grid world",),
        )
    for task, turns in SCIWORLD_TASKS.items():
        register(
            f"sciworld:{task}",
            "gem_envs.agentgym.sciworld:SciWorld",
            kwargs={"task": task, "max_turns": turns},
            wrappers=_REACT,
            summary=f"a science task in a house: {task.replace('-', ' ')}",
            turns=turns,
            reward="dense: increase of the score, sum 1; sum 0 for a failed task",
            data="generated by scienceworld",
            extra="sciworld",
            tags=("text adventure", "science", "java"),
        )
    for variant, kwargs in _TEXTCRAFT.items():
        register(
            f"textcraft:TextCraft-v0{variant}",
            "gem_envs.agentgym.textcraft:TextCraft",
            kwargs=kwargs,
            wrappers=_REACT,
            summary="craft an item from recipes",
            turns=kwargs["max_turns"],
            reward="terminal: 1 for the item",
            data="recipes of the package textcraft",
            extra="textcraft",
            tags=("crafting",),
        )
    for game, (name, summary, turns) in TEXTWORLD_GAMES.items():
        register(
            f"textworld:{name}-v0",
            "gem_envs.agentgym.textworld:TextWorld",
            kwargs={"game": game, "max_turns": turns},
            wrappers=_REACT,
            summary=summary,
            turns=turns,
            reward="dense: increase of the score, sum 1; sum 0 for a lost game",
            data="generated by textworld-express",
            extra="textworld",
            tags=("text adventure", "java"),
        )
