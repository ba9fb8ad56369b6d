"""TextCraft: craft a Minecraft item from raw items, with useful recipes among distractors."""

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
    """A crafting task; the reward is 1 for the goal item.

    'craft' follows a recipe exactly, once per turn; 'get' yields only items that no recipe makes.

    The seed draws a goal whose crafting depth is between `min_depth` and `max_depth`; the option
    `goal` selects one. The actions are AgentGym's. AgentGym's recipes depend on the process; these
    do not.
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
                f"min_depth must be at most {deepest}, the depth of the deepest item; "
                f"got {min_depth}"
            )

    def goals(self) -> list[str]:
        """Return the possible goals, sorted."""
        book = recipe_book()
        deepest = self.max_depth or len(book.of)
        return sorted(item for item in book.of if self.min_depth <= book.depth(item) <= deepest)

    def on_reset(self, options: Mapping[str, Any]) -> ResetResult:
        book = recipe_book()
        self.goal = options["goal"] if "goal" in options else self.rng.choice(self.goals())
        if self.goal not in book.of:
            raise OptionError(f"goal must be a craftable item, such as 'stick'; got {self.goal!r}")
        self.inventory: dict[str, int] = {}
        useful = book.tree(self.goal)
        near = {
            user for recipe in useful for name, _ in recipe.inputs for user in book.users[name]
        } - useful
        others = sorted(near)
        shown = sorted(useful) + self.rng.sample(others, min(_DISTRACTORS, len(others)))
        self.rng.shuffle(shown)
        self.reachable = sorted(
            {name for recipe in shown for name, _ in recipe.inputs if name in book.raw}
        )
        commands = "\n".join(map(str, shown))
        return (
            "TextCraft: craft an item. Actions:\n"
            "'get 3 oak logs' finds items, only such as no recipe makes;\n"
            "'craft 4 oak planks using 1 oak logs' follows a recipe once, "
            "with exactly what it asks for; "
            "where that is a kind ('planks'), give an item of that kind ('oak planks');\n"
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
            f"{shown!r} is no action. "
            "Write 'get 1 ITEM', 'craft 1 ITEM using 1 ITEM, 2 ITEM' or 'inventory'."
        )

    def _get(self, count: int, item: str) -> StepResult:
        if count < 1 or item not in recipe_book().raw:
            return self.carry_on(f"Could not find {count} {item}.")
        self.inventory[item] = self.inventory.get(item, 0) + count
        return self.carry_on(f"Got {count} {item}.")

    def _craft(self, item: str, listed: str) -> StepResult:
        items: dict[str, int] = {}
        for part in listed.split(","):
            counted = _COUNTED.fullmatch(part.strip())
            if counted is None:
                return self.carry_on(
                    f"{part.strip()[:40]!r} is no number and item, such as '2 oak planks'."
                )
            items[counted[2]] = items.get(counted[2], 0) + int(counted[1])
        recipe = next((r for r in recipe_book().of.get(item, ()) if _follows(r, items)), None)
        if recipe is None:
            return self.carry_on(f"No recipe makes {item[:40]} of exactly that.")
        short = [name for name, count in items.items() if self.inventory.get(name, 0) < count]
        if short:
            return self.carry_on(f"You do not have enough {', '.join(short)}.")
        for name, count in items.items():
            self.inventory[name] -= count
            if not self.inventory[name]:
                del self.inventory[name]
        self.inventory[item] = self.inventory.get(item, 0) + recipe.count
        feedback = f"Crafted {recipe.count} {item}."
        return self.won(feedback) if item == self.goal else self.carry_on(feedback)

    def sample_action(self) -> str:
        """Get a random item or craft one that is possible now."""
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
        """Get all raw items, then craft bottom-up."""
        raw, crafts = recipe_book().plan(self.goal)
        for item, count in raw.items():
            yield f"get {count} {item}"
        for recipe, used in crafts:
            inputs = ", ".join(f"{count} {item}" for item, count in used.items())
            yield f"craft {recipe.count} {recipe.output} using {inputs}"


def _follows(recipe: Recipe, items: Mapping[str, int]) -> bool:
    """Whether the items are exactly the recipe's inputs, one item for each input."""
    book, left = recipe_book(), dict(items)
    # Match items before kinds: a kind may otherwise take the item that another input needs.
    for name, count in sorted(recipe.inputs, key=lambda entry: entry[0] in book.kinds):
        match = next(
            (item for item in sorted(left) if left[item] == count and book.is_of(item, name)), None
        )
        if match is None:
            return False
        del left[match]
    return not left
