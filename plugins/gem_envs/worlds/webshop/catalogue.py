"""Catalogue: 1,200 generated products with attributes, options and prices."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace

from gem_envs.worlds.built_once import built_once
from gem_envs.worlds.names import invented_words
from gem_envs.worlds.text_index import build_index
from gem_tools.passage import Passage
from gem_tools.search import Index

__all__ = ["Catalogue", "Product", "catalogue"]

_PER_KIND = 30
_COLORS = ("black", "white", "navy blue", "forest green", "burgundy", "grey", "beige", "pink")
_SIZES = ("x-small", "small", "medium", "large", "x-large", "xx-large")
_BRAND_ENDS = ("ella", "ico", "ify", "ora", "tek", "ware")


@dataclass(frozen=True)
class _Department:
    kinds: tuple[str, ...]
    attributes: tuple[str, ...]
    options: Mapping[str, tuple[str, ...]]
    prices: tuple[int, int]


_DEPARTMENTS = {
    "beauty": _Department(
        ("body lotion", "eye shadow palette", "face serum", "hair dye", "hair mask", "lip balm")
        + ("nail polish", "shampoo"),
        ("alcohol free", "cruelty free", "fragrance free", "long lasting", "natural ingredients")
        + ("non toxic", "paraben free", "sensitive skin", "sulfate free", "travel size"),
        {
            "scent": ("coconut", "lavender", "rose", "unscented", "vanilla"),
            "size": ("2 ounce", "4 ounce", "8 ounce", "pack of 2"),
        },
        (4, 60),
    ),
    "electronics": _Department(
        ("bluetooth speaker", "desk lamp", "headphones", "phone case", "portable charger")
        + ("smart watch", "tablet stand", "wireless mouse"),
        ("easy to install", "fast charging", "hands free", "heavy duty", "high definition")
        + (
            "long battery life",
            "noise cancelling",
            "shock proof",
            "ultra light",
            "water resistant",
        ),
        {"color": _COLORS, "style": ("basic", "deluxe", "pro", "travel")},
        (8, 250),
    ),
    "fashion": _Department(
        ("ankle boots", "cardigan", "hoodie", "jeans", "polo shirt", "rain jacket")
        + ("running shoes", "summer dress"),
        ("arch support", "classic fit", "dry clean only", "long sleeve", "machine wash")
        + ("memory foam", "moisture wicking", "quick drying", "rubber sole", "slim fit"),
        {"color": _COLORS, "size": _SIZES},
        (12, 160),
    ),
    "food": _Department(
        ("almond butter", "dried mango", "granola bars", "green tea", "hot sauce", "popcorn")
        + ("protein powder", "rice crackers"),
        ("certified organic", "dairy free", "gluten free", "high protein", "keto friendly")
        + ("low sodium", "non gmo", "nut free", "plant based", "sugar free"),
        {
            "flavor name": ("chili lime", "dark chocolate", "honey", "original", "sea salt"),
            "size": ("6 ounce", "12 ounce", "2 pound", "pack of 6"),
        },
        (3, 50),
    ),
    "home": _Department(
        ("area rug", "bookcase", "coffee table", "curtains", "floor lamp", "office chair")
        + ("storage ottoman", "wall mirror"),
        (
            "assembly required",
            "easy to clean",
            "eco friendly",
            "fade resistant",
            "height adjustable",
        )
        + ("lead free", "machine washable", "solid wood", "space saving", "stainless steel"),
        {"color": _COLORS, "size": ("small", "medium", "large", "set of 2")},
        (15, 400),
    ),
}


@dataclass(frozen=True)
class Product:
    """A product: what its pages show, and the attributes that the reward compares."""

    id: str
    title: str
    kind: str
    department: str
    price: float
    attributes: tuple[str, ...]
    options: Mapping[str, tuple[str, ...]]
    description: str
    features: tuple[str, ...]


@dataclass(frozen=True)
class Catalogue:
    """All products by id, and the search index over their texts."""

    products: Mapping[str, Product]
    index: Index

    def search(self, keywords: str, limit: int) -> list[str]:
        """Return the ids of the products that fit the keywords best."""
        return [passage.id for passage in self.index.search(keywords[:500], limit)]


@built_once
def catalogue(seed: int = 0) -> Catalogue:
    """Return the catalogue of a seed, which all episodes of a process share."""
    rng = random.Random(f"webshop/{seed}")
    brands = invented_words(rng, 80, _BRAND_ENDS)
    products = [
        _draw_product(department, kind, brands, rng)
        for department, plan in _DEPARTMENTS.items()
        for kind in plan.kinds
        for _ in range(_PER_KIND)
    ]
    ids = rng.sample(range(10**6, 10**7), len(products))
    numbered = {
        f"B0{id}": replace(product, id=f"B0{id}") for id, product in zip(ids, products, strict=True)
    }
    documents = (
        Passage(p.id, p.title, f"{p.department} {p.description} {' '.join(p.features)}", 0.0)
        for p in numbered.values()
    )
    return Catalogue(numbered, build_index(documents))


def _draw_product(department: str, kind: str, brands: list[str], rng: random.Random) -> Product:
    plan = _DEPARTMENTS[department]
    attributes = tuple(rng.sample(plan.attributes, rng.randint(3, 5)))
    # A title names two attributes; the others are on the pages of the product.
    named, hidden = attributes[:2], attributes[2:]
    options = {
        name: tuple(rng.sample(values, rng.randint(2, min(5, len(values)))))
        for name, values in plan.options.items()
    }
    brand, model = rng.choice(brands), f"{rng.choice('ABCDEFGHKLMNPRSTVX')}{rng.randint(100, 999)}"
    low, high = plan.prices
    return Product(
        id="",
        title=f"{brand} {kind} {model}, {', '.join(named)}",
        kind=kind,
        department=department,
        price=round(rng.uniform(low, high), 2),
        attributes=attributes,
        options=options,
        description=f"The {model} by {brand} is a {kind} for every day.",
        features=(*[f"{text} {kind}" for text in hidden], f"made by {brand}", f"model {model}"),
    )
