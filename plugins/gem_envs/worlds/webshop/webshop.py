"""WebShop environment: `search[keywords]` and `click[value]` on the pages of a shop."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from gem_core.arguments import whole_number
from gem_core.env.base import ResetResult, StepResult
from gem_envs.games.base import Game
from gem_envs.worlds.webshop.catalogue import Product, catalogue
from gem_envs.worlds.webshop.reward import draw_goal, purchase_reward

__all__ = ["WebShop"]

_ACTION = re.compile(r"(search|click|choose|buy)\[(.*)\]", re.DOTALL | re.IGNORECASE)
_PER_PAGE, _MOST_RESULTS = 10, 50
_BACK, _PREVIOUS, _NEXT, _BUY = "back to search", "< prev", "next >", "buy now"
_TABS = ("description", "features", "reviews", "attributes")
_SEP = " [SEP] "


class WebShop(Game):
    """A shopping task; the reward at the purchase is WebShop's, from 0 to 1.

    The pages are WebShop's, as text: search, results, product, and the tabs of a product.
    `choose[...]` is the same as `click[...]`. `success` is a reward of 1.
    """

    action_example = "search[noise cancelling headphones]"

    def __init__(self, catalogue_seed: int = 0, max_turns: int = 15) -> None:
        self.catalogue_seed = whole_number("catalogue_seed", catalogue_seed, 0)
        self.max_turns = whole_number("max_turns", max_turns, 1)
        catalogue(self.catalogue_seed)  # raise now if the search package is missing

    def on_reset(self, options: Mapping[str, Any]) -> ResetResult:
        products = catalogue(self.catalogue_seed).products
        self.results: list[str] = []
        self.goal = draw_goal(products[self.rng.choice(list(products))], self.rng)
        self._open_search()
        return (
            "You are in a web shop. Buy what the instruction asks for. The actions are "
            "search[KEYWORDS] on the search page, and click[VALUE] with a value that the page "
            "shows between [SEP]: a product's id, an option, a tab or a button. "
            f"click[{_BUY}] ends the episode. You have {self.max_turns} turns.\n\n{self._page()}",
            {"instruction": str(self.goal)},
        )

    def on_step(self, action: str) -> StepResult:
        match = _ACTION.fullmatch(action.strip())
        value = " ".join(match[2].split()) if match else ""
        if match is None or not value:
            return self.carry_on(f"That is not search[...] or click[...].\n{self._page()}")
        if match[1].lower() == "search":
            if self.product is not None or self.results:
                return self.carry_on(f"There is no search field on this page.\n{self._page()}")
            self.results = catalogue(self.catalogue_seed).search(value, _MOST_RESULTS)
            self.page = 0
            return self.carry_on(self._page() if self.results else f"No results.\n{self._page()}")
        if value.lower() not in (name.lower() for name in self.clickables()):
            return self.carry_on(f"There is no {value[:40]!r} on this page.\n{self._page()}")
        if value.lower() == _BUY and self.product is not None:
            reward = purchase_reward(self.product, self.chosen, self.goal)
            feedback = f"Thank you for shopping. Your score is {reward:.2f}."
            return self.won(feedback, 1.0) if reward == 1.0 else self.lost(feedback, reward)
        self._click(value.lower())
        return self.carry_on(self._page())

    def _open_search(self) -> None:
        self.results = []
        self.page = 0
        self.product: Product | None = None
        self.chosen: dict[str, str] = {}
        self.tab: str | None = None

    def _click(self, value: str) -> None:
        if value == _BACK:
            self._open_search()
        elif value == _NEXT:
            self.page += 1
        elif value == _PREVIOUS and self.tab is not None:
            self.tab = None
        elif value == _PREVIOUS and self.product is not None:
            self.product, self.chosen = None, {}
        elif value == _PREVIOUS:
            self.page -= 1
        elif value in _TABS:
            self.tab = value
        elif self.product is None:
            self.product = catalogue(self.catalogue_seed).products[value.upper()]
        else:
            name = next(n for n, values in self.product.options.items() if value in values)
            self.chosen[name] = value

    def clickables(self) -> list[str]:
        """Return the values that `click` takes on this page."""
        if self.product is None and not self.results:
            return []
        if self.tab is not None:
            return [_BACK, _PREVIOUS]
        if self.product is not None:
            values = [value for values in self.product.options.values() for value in values]
            return [_BACK, _PREVIOUS, *values, *_TABS, _BUY]
        first = self.page * _PER_PAGE
        buttons = [_BACK]
        buttons += [_PREVIOUS] if self.page else []
        buttons += [_NEXT] if first + _PER_PAGE < len(self.results) else []
        return [*buttons, *self.results[first : first + _PER_PAGE]]

    def _page(self) -> str:
        parts = ["WebShop", "Instruction:", str(self.goal)]
        if self.product is not None:
            parts += self._product_page(self.product)
        elif self.results:
            parts += self._results_page()
        else:
            parts += ["Search"]
        return _SEP.join(parts)

    def _results_page(self) -> list[str]:
        shown = self.clickables()
        buttons = [value.title() for value in shown if value in (_BACK, _PREVIOUS, _NEXT)]
        products = catalogue(self.catalogue_seed).products
        lines = [f"Page {self.page + 1} (Total results: {len(self.results)})"]
        for id in shown[len(buttons) :]:
            lines += [id, products[id].title, f"${products[id].price:.2f}"]
        return [*buttons, *lines]

    def _product_page(self, product: Product) -> list[str]:
        parts = [_BACK.title(), _PREVIOUS.title()]
        if self.tab is not None:
            texts: dict[str, tuple[str, ...]] = {
                "description": (product.description,),
                "features": product.features,
                "reviews": ("no reviews yet",),
                "attributes": product.attributes,
            }
            return [*parts, *texts[self.tab]]
        for name, values in product.options.items():
            marked = [f"{v} (chosen)" if self.chosen.get(name) == v else v for v in values]
            parts += [name, *marked]
        parts += [product.title, f"Price: ${product.price:.2f}", "Rating: N.A."]
        return [*parts, *(tab.title() for tab in _TABS), _BUY.title()]

    def sample_action(self) -> str:
        clickables = self.clickables()
        if not clickables:
            return f"search[{self.goal.product.kind}]"
        return f"click[{self.action_rng.choice(clickables)}]"

    def expert(self) -> Iterator[str]:
        """Search the goal's product by its title, choose the options and buy."""
        product = self.goal.product
        yield f"search[{product.title}]"
        while product.id not in self.clickables():
            yield f"click[{_NEXT}]"
        yield f"click[{product.id}]"
        for value in self.goal.options.values():
            yield f"click[{value}]"
        yield f"click[{_BUY}]"
