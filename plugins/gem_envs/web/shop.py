"""Shop: a catalogue with categories and search, a cart, and a checkout."""

from __future__ import annotations

import random
from html import escape
from typing import Any, ClassVar

from gem_envs.web.site import (
    Answer,
    Page,
    Redirect,
    Request,
    Site,
    WebTask,
    form,
    link,
    options,
    table,
)

__all__ = ["Shop"]

_CATEGORIES = {
    "lamps": (
        "desk lamp",
        "floor lamp",
        "reading lamp",
        "night light",
        "lantern",
        "spotlight",
        "string lights",
    ),
    "chairs": (
        "armchair",
        "stool",
        "rocking chair",
        "folding chair",
        "bench",
        "recliner",
        "bar stool",
    ),
    "kitchen": ("kettle", "toaster", "skillet", "teapot", "colander", "whisk", "mixing bowl"),
    "garden": ("watering can", "rake", "wheelbarrow", "bird feeder", "trowel", "hose", "planter"),
}
_STYLES = ("Maple", "Copper", "Nordic", "Vintage", "Ivory", "Cobalt", "Rustic", "Onyx")
_PEOPLE = ("Ada Novak", "Ben Osei", "Chloe Martin", "Diego Ruiz", "Eva Lindgren", "Farah Aziz")
_STREETS = (
    "12 Mill Lane",
    "7 Harbour Road",
    "48 Chestnut Avenue",
    "3 Station Street",
    "91 Orchard Way",
)
_CITIES = ("Bergen", "Lyon", "Porto", "Ghent", "Graz", "Turku")
_DELIVERIES = ("standard", "express", "pickup")
_ON_A_PAGE = 5


class Shop(Site):
    """The shop; its state is the products by number, the cart (number -> amount) and the orders."""

    title = "Corner Shop"
    menu = (("/", "Home"), ("/cart", "Cart"), ("/orders", "Orders"))
    kinds: ClassVar = ("buy", "cheapest", "tidy_cart", "price")

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        products: dict[str, dict[str, Any]] = {}
        for category, things in _CATEGORIES.items():
            styles = rng.sample(_STYLES, len(things))
            prices = rng.sample(range(500, 20_000, 5), len(things))
            for thing, style, price in zip(things, styles, prices, strict=True):
                stock = rng.choice((0, 3, 8, 15))
                product = {
                    "name": f"{style} {thing}",
                    "category": category,
                    "price": price,
                    "stock": stock,
                }
                products[str(len(products) + 1)] = {
                    **product,
                    "material": rng.choice(("wood", "steel", "glass", "bamboo")),
                }
        self.state = {"products": products, "cart": {}, "orders": []}

    def answer(self, request: Request) -> Answer:
        state = self.state
        match request.path:
            case ():
                return self._home()
            case ("category", category) if category in _CATEGORIES:
                return self._category(category, request.query)
            case ("search",):
                return self._search(request.query.get("q", ""))
            case ("product", number) if number in state["products"]:
                return self._product(number)
            case ("cart",):
                return self._cart()
            case ("cart", "add") if request.posted is not None:
                number = request.posted.get("product", "")
                amount = _amount(request.posted.get("amount"))
                total = state["cart"].get(number, 0) + amount
                product = state["products"].get(number)
                if product and amount > 0 and total <= product["stock"]:
                    state["cart"][number] = total
                    return Redirect("/cart")
                return Page("Cart", "<p>That many are not in stock.</p>")
            case ("cart", "set") if request.posted is not None:
                number = request.posted.get("product", "")
                amount = _amount(request.posted.get("amount"))
                if number in state["cart"]:
                    if amount <= 0:
                        del state["cart"][number]
                    elif amount <= state["products"][number]["stock"]:
                        state["cart"][number] = amount
                return Redirect("/cart")
            case ("checkout",) if request.posted is not None:
                return self._order(dict(request.posted))
            case ("checkout",):
                return self._checkout()
            case ("orders",):
                orders = [
                    f"Order {i}: {self._items(o['items'])}, to {o['name']}"
                    for i, o in enumerate(state["orders"], 1)
                ]
                if not orders:
                    return Page("Orders", "<p>There are no orders yet.</p>")
                items = "".join(f"<li>{escape(order)}</li>" for order in orders)
                return Page("Orders", f"<ul>{items}</ul>")
        return self.missing()

    def task_buy(self) -> WebTask:
        """Order a product and fill in the checkout form."""
        number = self._in_stock()
        product = self.state["products"][number]
        amount = self.rng.randint(1, 3)
        name = self.rng.choice(_PEOPLE)
        street, city = self.rng.choice(_STREETS), self.rng.choice(_CITIES)
        delivery, gift = self.rng.choice(_DELIVERIES), self.rng.random() < 0.5
        order = {
            "items": {number: amount},
            "name": name,
            "street": street,
            "city": city,
            "delivery": delivery,
            "gift": gift,
        }
        wrapped = "wrapped as a gift" if gift else "not wrapped as a gift"
        return WebTask(
            "buy",
            f"Order {amount} of the {product['name']}, {wrapped}, for {name}, {street}, {city}, "
            f"with {delivery} delivery.",
            self.changed(lambda state: state["orders"].append(order)),
            plan=(
                ("type", "textbox 'Search'", product["name"]),
                ("click", "button 'Search'"),
                ("click", f"link '{product['name']}'"),
                ("type", "textbox 'Amount'", str(amount)),
                ("click", "button 'Add to cart'"),
                ("click", "link 'Go to checkout'"),
                ("type", "textbox 'Full name'", name),
                ("type", "textbox 'Street'", street),
                ("type", "textbox 'City'", city),
                ("select", "combobox 'Delivery'", delivery),
                *([("click", "checkbox 'Gift wrap'")] if gift else []),
                ("click", "button 'Place order'"),
                ("stop", ""),
            ),
        )

    def task_cheapest(self) -> WebTask:
        """Find the cheapest product of a category that is in stock."""
        category = self.rng.choice(tuple(_CATEGORIES))
        in_stock = {
            n: p
            for n, p in self.state["products"].items()
            if p["category"] == category and p["stock"]
        }
        if not in_stock:
            number = next(n for n, p in self.state["products"].items() if p["category"] == category)
            self.state["products"][number]["stock"] = 3
            in_stock = {number: self.state["products"][number]}
        number = min(in_stock, key=lambda n: int(in_stock[n]["price"]))
        on_next_page = self._place(category, number) >= _ON_A_PAGE
        return WebTask(
            "cheapest",
            f"Put the cheapest product of the category {category} that is in stock "
            "into the cart, once. Do not order it.",
            self.changed(lambda state: state["cart"].update({number: 1})),
            plan=(
                ("click", f"link '{category}'"),
                ("select", "combobox 'Sort by'", "price"),
                *([("click", "link 'Next page'")] if on_next_page else []),
                ("click", f"link '{in_stock[number]['name']}'"),
                ("click", "button 'Add to cart'"),
                ("stop", ""),
            ),
        )

    def task_tidy_cart(self) -> WebTask:
        """Remove one product from the cart and change the amount of another."""
        first, second, third = self.rng.sample(sorted(self.state["products"], key=int), 3)
        for number in (first, second, third):
            self.state["products"][number]["stock"] = 15
            self.state["cart"][number] = self.rng.randint(1, 3)
        amount = self.rng.randint(4, 9)
        names = {n: self.state["products"][n]["name"] for n in (first, second, third)}

        def tidy(state: Any) -> None:
            del state["cart"][first]
            state["cart"][second] = amount

        return WebTask(
            "tidy_cart",
            f"Take the {names[first]} out of the cart "
            f"and change the amount of the {names[second]} to {amount}. Do not order.",
            self.changed(tidy),
            plan=(
                ("click", "link 'Cart'"),
                ("click", "button 'Remove'", "", names[first]),
                ("type", "textbox 'Amount'", str(amount), names[second]),
                ("click", "button 'Change'", "", names[second]),
                ("stop", ""),
            ),
        )

    def task_price(self) -> WebTask:
        """Ask a question about a product; the state must not change."""
        number = self.rng.choice(sorted(self.state["products"], key=int))
        product = self.state["products"][number]
        return WebTask(
            "price",
            f"What is the {product['name']} made of? Answer with the material alone.",
            self.changed(lambda state: None),
            answer=product["material"],
            plan=(
                ("type", "textbox 'Search'", product["name"]),
                ("click", "button 'Search'"),
                ("click", f"link '{product['name']}'"),
                ("stop", product["material"]),
            ),
        )

    # Pages.

    def _home(self) -> Page:
        categories = "".join(f"<li>{link(f'/category/{c}', c)}</li>" for c in _CATEGORIES)
        return Page("Welcome", f"{_search_form('')}<h2>Categories</h2><ul>{categories}</ul>")

    def _category(self, category: str, query: Any) -> Page:
        sort = query.get("sort", "name")
        numbers = self._sorted(category, sort)
        page = max(0, min(_amount(query.get("page")), (len(numbers) - 1) // _ON_A_PAGE))
        shown = numbers[page * _ON_A_PAGE : (page + 1) * _ON_A_PAGE]
        rows = [self._row(number) for number in shown]
        orders = options(("name", "price"), sort)
        chooser = (
            "<form method='get'><label>Sort by <select name='sort' "
            f"onchange='this.form.submit()'>{orders}</select></label></form>"
        )
        links = []
        if page > 0:
            links.append(link(f"/category/{category}?sort={sort}&page={page - 1}", "Previous page"))
        if (page + 1) * _ON_A_PAGE < len(numbers):
            links.append(link(f"/category/{category}?sort={sort}&page={page + 1}", "Next page"))
        products = table(("product", "price", "stock"), rows)
        return Page(f"Category {category}", f"{chooser}{products}<p>{' '.join(links)}</p>")

    def _search(self, text: str) -> Page:
        words = text.casefold().split()
        products = self.state["products"]
        rows = [
            self._row(n)
            for n, p in products.items()
            if words and all(word in p["name"].casefold() for word in words)
        ]
        hits = table(("product", "price", "stock"), rows) if rows else "<p>Nothing was found.</p>"
        return Page("Search", _search_form(text) + hits)

    def _product(self, number: str) -> Page:
        product = self.state["products"][number]
        facts = (
            f"<p>Price: {_price(product['price'])}</p><p>{_stock(product['stock'])}</p>"
            f"<p>Material: {product['material']}</p>"
        )
        add = form(
            "/cart/add",
            "Add to cart",
            f"<input type='hidden' name='product' value='{number}'>",
            "<label>Amount <input name='amount' value='1' inputmode='numeric'></label>",
        )
        category = link(f"/category/{product['category']}", product["category"])
        return Page(
            product["name"], f"{facts}{add if product['stock'] else ''}<p>Category: {category}</p>"
        )

    def _cart(self) -> Page:
        rows = []
        for number, amount in self.state["cart"].items():
            product = self.state["products"][number]
            hidden = f"<input type='hidden' name='product' value='{number}'>"
            change = form(
                "/cart/set",
                "Change",
                hidden,
                f"<label>Amount <input name='amount' value='{amount}'></label>",
            )
            remove = form(
                "/cart/set", "Remove", hidden, "<input type='hidden' name='amount' value='0'>"
            )
            rows.append([escape(product["name"]), _price(product["price"]), change, remove])
        if not rows:
            return Page("Cart", "<p>The cart is empty.</p>")
        total = sum(self.state["products"][n]["price"] * a for n, a in self.state["cart"].items())
        cart = table(("product", "price", "amount", ""), rows)
        checkout = link("/checkout", "Go to checkout")
        return Page("Cart", f"{cart}<p>Total: {_price(total)}</p><p>{checkout}</p>")

    def _checkout(self, problem: str = "") -> Page:
        if not self.state["cart"]:
            return Page("Checkout", "<p>The cart is empty.</p>")
        fields = [
            f"<p><label>{label} <input name='{name}' required></label></p>"
            for name, label in (("name", "Full name"), ("street", "Street"), ("city", "City"))
        ]
        deliveries = f"<select name='delivery'>{options(_DELIVERIES)}</select>"
        fields.append(f"<p><label>Delivery {deliveries}</label></p>")
        fields.append(
            "<p><label>Gift wrap <input type='checkbox' name='gift' value='yes'></label></p>"
        )
        items = self._items(self.state["cart"])
        order = form("/checkout", "Place order", *fields)
        return Page("Checkout", f"<p>{problem}</p>{items}{order}")

    def _order(self, posted: dict[str, str]) -> Answer:
        names = ("name", "street", "city", "delivery")
        fields = {name: posted.get(name, "").strip() for name in names}
        complete = all(fields.values()) and fields["delivery"] in _DELIVERIES
        if not self.state["cart"] or not complete:
            return self._checkout("Please fill in every field.")
        order = {"items": dict(self.state["cart"]), **fields, "gift": posted.get("gift") == "yes"}
        self.state["orders"].append(order)
        self.state["cart"] = {}
        return Redirect("/orders")

    def _row(self, number: str) -> list[str]:
        product = self.state["products"][number]
        return [
            link(f"/product/{number}", product["name"]),
            _price(product["price"]),
            _stock(product["stock"]),
        ]

    def _items(self, items: dict[str, int]) -> str:
        return ", ".join(
            f"{amount} x {self.state['products'][number]['name']}"
            for number, amount in items.items()
        )

    def _sorted(self, category: str, sort: str) -> list[str]:
        products = self.state["products"]
        key = "price" if sort == "price" else "name"
        return sorted(
            (n for n, p in products.items() if p["category"] == category),
            key=lambda n: (products[n][key], n),
        )

    def _place(self, category: str, number: str) -> int:
        return self._sorted(category, "price").index(number)

    def _in_stock(self) -> str:
        return str(self.rng.choice([n for n, p in self.state["products"].items() if p["stock"]]))


def _amount(text: str | None) -> int:
    return int(text) if text and text.strip().isdecimal() and len(text) < 6 else 0


def _price(cents: int) -> str:
    return f"{cents // 100}.{cents % 100:02}"


def _stock(count: int) -> str:
    return f"{count} in stock" if count else "sold out"


def _search_form(text: str) -> str:
    field = f"<label>Search <input name='q' value='{escape(text, quote=True)}'></label>"
    return form("/search", "Search", field, method="get")
