"""Purchase reward: WebShop's score of a product and its options against a goal."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from gem_envs.worlds.webshop.catalogue import Product

__all__ = ["ShoppingGoal", "draw_goal", "purchase_reward"]


@dataclass(frozen=True)
class ShoppingGoal:
    """What the user wants to buy."""

    product: Product
    """A product that fits; others may fit as well."""
    attributes: tuple[str, ...]
    options: Mapping[str, str]
    most: float
    """The price must be lower."""

    def __str__(self) -> str:
        options = "".join(f", {name}: {value}" for name, value in self.options.items())
        return (
            f"i am looking for a {', '.join(self.attributes)} {self.product.kind}{options}, "
            f"and price lower than {self.most:.2f} dollars"
        )


def draw_goal(product: Product, rng: random.Random) -> ShoppingGoal:
    """Draw what a user says who wants this product."""
    attributes = tuple(rng.sample(product.attributes, rng.randint(1, 3)))
    options = {name: rng.choice(values) for name, values in product.options.items()}
    most = 10.0 * (int(product.price * rng.uniform(1.05, 1.5)) // 10 + 1)
    return ShoppingGoal(product, attributes, options, most)


def purchase_reward(product: Product, chosen: Mapping[str, str], goal: ShoppingGoal) -> float:
    """Return WebShop's reward: type * (attributes + options + price) / (all attributes + all + 1).

    The factor for the type is 1 for the same kind of product, 0.1 for another kind of the same
    department, and 0 otherwise. WebShop computes it from the words of title and category.
    """
    if product.kind == goal.product.kind:
        kind = 1.0
    elif product.department == goal.product.department:
        kind = 0.1
    else:
        return 0.0
    attributes = sum(attribute in product.attributes for attribute in goal.attributes)
    options = sum(chosen.get(name) == value for name, value in goal.options.items())
    right = attributes + options + (product.price < goal.most)
    return kind * right / (len(goal.attributes) + len(goal.options) + 1)
