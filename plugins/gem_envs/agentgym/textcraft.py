"""TextCraft: craft an item of Minecraft from what can be found, with the recipes given among others that do not help."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from gem_core.arguments import whole_number
from gem_core.env.base import ResetResult, StepResult
from gem_core.errors import ConfigError, OptionError
from gem_envs.agentgym.crafting import Recipe, recipe_book
from gem_envs.games.base import Game

__all__ = ["TextCraft"]

_DISTRACTORS = 10
_CRAFT = re.compile(r"craft (?:\d{1,4} )?(.+?) using (.+)")
_GET = re.compile(r"get (\d{1,4}) (.+)")
_COUNTED = re.compile(r"(\d{1,4}) (.+)")


class TextCraft(Game):
    """Pays 1 for the goal. A recipe is followed exactly, once a turn; only what no recipe makes can be got.

    The seed draws a goal among the items whose crafts stand `min_depth` to `max_depth` one above the other; the option `goal`
    names one. The actions are those of AgentGym, whose recipes depend on the process; here they do not.
    """

    option_names = frozenset({"goal"})
    action_example = "get 1 oak logs"

    def __init__(
        self, min_depth: int = 2, max_depth: int | None = None, max_turns: int = 50
    ) -> None:
        self.min_depth = whole_number("min_depth", min_depth, 1)
        self.max_depth = (
            max_depth if max_depth is None else whole_number("max_depth", max_depth, min_depth)
        )
        self.max_turns = whole_number("max_turns", max_turns, 1)
        if not self.goals():
            deepest = max(map(recipe_book().depth, recipe_book().of))
            raise ConfigError(
                f"min_depth must be at most {deepest}, the depth of the deepest item; given: {min_depth}"
            )

    def goals(self) -> list[str]:
        """What may be asked for, sorted."""
        book = recipe_book()
        deepest = self.max_depth or len(book.of)
        return sorted(item for item in book.of if self.min_depth <= book.depth(item) <= deepest)

    def on_reset(self, options: Mapping[str, Any]) -> ResetResult:
        book = recipe_book()
        self.goal = options["goal"] if "goal" in options else self.rng.choice(self.goals())
        if self.goal not in book.of:
            raise OptionError(
                f"goal must be an item that can be crafted, such as 'stick'; given: {self.goal!r}"
            )
        self.inventory: dict[str, int] = {}
        useful = book.tree(self.goal)
        near = {
            user for recipe in useful for name, _ in recipe.inputs for user in book.users[name]
        } - useful
        others = sorted(near)
        shown = sorted(useful) + self.rng.sample(others, min(_DISTRACTORS, len(others)))
        self.rng.shuffle(shown)
        self.reachable = sorted(
            {name for recipe in shown for name, _ in recipe.inputs if name in book.found}
        )
        commands = "\n".join(map(str, shown))
        return (
            "TextCraft: craft an item. Actions:\n"
            "'get 3 oak logs' finds items, only such as no recipe makes;\n"
            "'craft 4 oak planks using 1 oak logs' follows a recipe once, with exactly what it asks for; where that is a kind "
            "('planks'), give an item of that kind ('oak planks');\n"
            f"'inventory' lists what you have. You have {self.max_turns} turns.\n\n"
            f"Crafting commands:\n{commands}\n\nGoal: craft {self.goal}.",
            {"goal": self.goal},
        )

    def on_step(self, action: str) -> StepResult:
        text = " ".join(action.lower().split())
        if text == "inventory":
            held = ", ".join(f"{count} {item}" for item, count in sorted(self.inventory.items()))
            return self.carry_on(f"Inventory: {held or 'nothing'}.")
        if got := _GET.fullmatch(text):
            return self._get(int(got[1]), got[2])
        if crafted := _CRAFT.fullmatch(text):
            return self._craft(crafted[1], crafted[2])
        shown = action if len(action) <= 40 else action[:37] + "..."
        return self.carry_on(
            f"{shown!r} is no action. Write 'get 1 ITEM', 'craft 1 ITEM using 1 ITEM, 2 ITEM' or 'inventory'."
        )

    def _get(self, count: int, item: str) -> StepResult:
        if count < 1 or item not in recipe_book().found:
            return self.carry_on(f"Could not find {count} {item}.")
        self.inventory[item] = self.inventory.get(item, 0) + count
        return self.carry_on(f"Got {count} {item}.")

    def _craft(self, item: str, listed: str) -> StepResult:
        given: dict[str, int] = {}
        for part in listed.split(","):
            counted = _COUNTED.fullmatch(part.strip())
            if counted is None:
                return self.carry_on(
                    f"{part.strip()[:40]!r} is no number and item, such as '2 oak planks'."
                )
            given[counted[2]] = given.get(counted[2], 0) + int(counted[1])
        recipe = next((r for r in recipe_book().of.get(item, ()) if _follows(r, given)), None)
        if recipe is None:
            return self.carry_on(f"No recipe makes {item[:40]} of exactly that.")
        short = [name for name, count in given.items() if self.inventory.get(name, 0) < count]
        if short:
            return self.carry_on(f"You do not have enough {', '.join(short)}.")
        for name, count in given.items():
            self.inventory[name] -= count
            if not self.inventory[name]:
                del self.inventory[name]
        self.inventory[item] = self.inventory.get(item, 0) + recipe.count
        said = f"Crafted {recipe.count} {item}."
        return self.won(said) if item == self.goal else self.carry_on(said)

    def sample_action(self) -> str:
        """Gets something, or crafts what can be crafted now."""
        book, rng = recipe_book(), self.action_rng
        users = {user for item in self.inventory for user in book.users.get(item, ())}
        ready = [
            user
            for user in sorted(users)
            if all(self.inventory.get(name, 0) >= count for name, count in user.inputs)
        ]
        if ready and rng.random() < 0.5:
            return str(rng.choice(ready))
        return f"get {rng.randint(1, 4)} {rng.choice(self.reachable)}"

    def expert(self) -> Iterator[str]:
        """Gets all that is needed, then crafts from below."""
        find, crafts = recipe_book().plan(self.goal)
        for item, count in find.items():
            yield f"get {count} {item}"
        for recipe, given in crafts:
            yield f"craft {recipe.count} {recipe.output} using {', '.join(f'{count} {item}' for item, count in given.items())}"


def _follows(recipe: Recipe, given: Mapping[str, int]) -> bool:
    """Whether exactly what a recipe asks for is given, one item for each of its inputs; items come before kinds."""
    book, left = recipe_book(), dict(given)
    for name, count in sorted(recipe.inputs, key=lambda wanted: wanted[0] in book.kinds):
        match = next(
            (item for item in sorted(left) if left[item] == count and book.is_of(item, name)), None
        )
        if match is None:
            return False
        del left[match]
    return not left
