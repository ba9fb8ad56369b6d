"""Tests of WebShop: the pages, the grammar and the reward."""

from __future__ import annotations

from typing import Any

import pytest

from gem_core.env.registry import make
from gem_envs.worlds.webshop.catalogue import Product, catalogue
from gem_envs.worlds.webshop.reward import ShoppingGoal, purchase_reward


def product(**changes: Any) -> Product:
    facts: dict[str, Any] = {
        "id": "B1",
        "title": "Acme hoodie",
        "kind": "hoodie",
        "department": "fashion",
        "price": 30.0,
        "attributes": ("slim fit", "long sleeve"),
        "options": {"color": ("black", "white"), "size": ("small", "large")},
        "description": "",
        "features": (),
    }
    return Product(**{**facts, **changes})


GOAL = ShoppingGoal(
    product(), ("slim fit", "long sleeve"), {"color": "black", "size": "small"}, 40.0
)


@pytest.mark.parametrize(
    ("bought", "chosen", "reward"),
    [
        (product(), {"color": "black", "size": "small"}, 1.0),  # (2 + 2 + 1) / 5
        (product(), {"color": "black"}, 0.8),
        (product(), {}, 0.6),
        (product(price=40.0), {"color": "black", "size": "small"}, 0.8),
        (product(attributes=("slim fit",)), {"color": "white", "size": "small"}, 0.6),
        (product(kind="jeans"), {"color": "black", "size": "small"}, 0.1),
        (product(kind="area rug", department="home"), {"color": "black", "size": "small"}, 0.0),
    ],
)
def test_reward_is_webshops(bought: Product, chosen: dict[str, str], reward: float) -> None:
    assert purchase_reward(bought, chosen, GOAL) == pytest.approx(reward)


def test_catalogue_has_more_than_a_thousand_different_products() -> None:
    products = catalogue().products.values()
    assert len(products) == 1200
    assert len({p.title for p in products}) > 1190


def shop(seed: int = 0) -> Any:
    env = make("webshop:WebShop-v0").unwrapped
    env.reset(seed=seed)
    return env


def test_pages_lead_to_each_other() -> None:
    env = shop()
    assert "no search field" not in env.step("search[hoodie]")[0]
    first = env.clickables()[-10:]
    assert "Page 2" in env.step("click[Next >]")[0]
    assert env.clickables()[-10:] != first
    assert "Page 1" in env.step("click[< prev]")[0]
    assert "Buy Now" in env.step(f"click[{first[0].lower()}]")[0]
    assert "[SEP] Features" not in env.step("click[features]")[0]
    assert "Buy Now" in env.step("click[< Prev]")[0]
    assert env.step("search[jeans]")[0].startswith("There is no search field")
    assert env.step("click[back to search]")[0].endswith("[SEP] Search")


def test_impossible_action_costs_a_turn_and_shows_the_page() -> None:
    env = shop()
    for action in ("buy", "click[buy now]", "click[]", "search[]", "search[qqqq]", "click[B0]"):
        observation, reward, terminated, *_ = env.step(action)
        assert observation.endswith("[SEP] Search")
        assert (reward, terminated) == (0.0, False)


def test_buying_the_first_result_earns_a_part() -> None:
    """A floor: search the instruction, buy the first result without options."""
    total = 0.0
    for seed in range(20):
        env = shop(seed)
        env.step(f"search[{env.goal}]")
        env.step(f"click[{next(v for v in env.clickables() if v.startswith('B0'))}]")
        total += env.step("click[buy now]")[1]
    assert 0.2 < total / 20 < 0.7
