"""Tasks on a SQLite database: a shop with customers, products and orders."""

from __future__ import annotations

import random
from collections.abc import Sequence

from gem_envs.mcp_suite.sql import sql_task
from gem_envs.mcp_suite.task import Call, SuiteTask, Template
from gem_envs.terminal.task import ITEMS, PEOPLE

__all__ = ["TEMPLATES"]

_CITIES = ("Aarhus", "Bergen", "Cadiz", "Dresden", "Espoo")
_SCHEMA = """
create table customers (id integer primary key, name text not null, city text not null);
create table products (id integer primary key, name text not null, price integer not null,
    stock integer not null);
create table orders (id integer primary key, customer_id integer not null references customers,
    product_id integer not null references products, amount integer not null,
    status text not null, day integer not null);
"""
_LOOK: tuple[Call, ...] = (("list_tables", {}),)
_ABOUT = (
    "The SQLite database of a shop has the tables customers, products and orders. The status of "
    "an order is open, shipped or cancelled; its day is a number. "
)


def _describe(*tables: str) -> tuple[Call, ...]:
    return (*_LOOK, *(("describe_table", {"table_name": table}) for table in tables))


def _read(query: str) -> Call:
    return "read_query", {"query": query}


def _write(statement: str) -> Call:
    if statement.lower().startswith("create table"):
        return "create_table", {"query": statement}
    return "write_query", {"query": statement}


def shop_script(rng: random.Random, products: int = 8, orders: int = 30) -> str:
    """Return the SQL script of a shop."""
    people = rng.sample(PEOPLE, 9)
    lines = [_SCHEMA]
    lines += [
        f"insert into customers values ({n}, '{name}', '{rng.choice(_CITIES)}');"
        for n, name in enumerate(people, 1)
    ]
    lines += [
        f"insert into products values ({n}, '{name}', {rng.randint(2, 90)}, {rng.randint(5, 60)});"
        for n, name in enumerate(rng.sample(ITEMS, products), 1)
    ]
    for n in range(1, orders + 1):
        status = rng.choice(("open", "open", "shipped", "cancelled"))
        values = (n, rng.randint(1, 9), rng.randint(1, products), rng.randint(1, 9))
        lines.append(f"insert into orders values {(*values, status, rng.randint(1, 90))};")
    return "\n".join(lines)


def _task(
    instruction: str,
    script: str,
    reference: Sequence[str],
    look: Sequence[Call],
    probes: Sequence[str] = (),
) -> SuiteTask:
    return sql_task(_ABOUT + instruction, script, reference, look, _write, probes)


def restock(rng: random.Random) -> SuiteTask:
    script, number = shop_script(rng), rng.randint(1, 8)
    amount = rng.randint(100, 500)
    return _task(
        f"A delivery of {amount} pieces of the product with the id {number} arrived. Add them to "
        "its stock.",
        script,
        [f"update products set stock = stock + {amount} where id = {number}"],
        (*_describe("products"), _read(f"select * from products where id = {number}")),
    )


def new_customer(rng: random.Random) -> SuiteTask:
    script, city, item = shop_script(rng), rng.choice(_CITIES), rng.randint(1, 8)
    amount, day = rng.randint(2, 9), rng.randint(91, 99)
    return _task(
        f"Add the customer Zoe in {city} with the id 10, and for this customer an open order with "
        f"the id 31: {amount} pieces of the product with the id {item}, on day {day}.",
        script,
        [
            f"insert into customers values (10, 'Zoe', '{city}')",
            f"insert into orders values (31, 10, {item}, {amount}, 'open', {day})",
        ],
        _describe("customers", "orders"),
    )


def move_city(rng: random.Random) -> SuiteTask:
    script = shop_script(rng)
    old, new = rng.sample(_CITIES, 2)
    script += f"\nupdate customers set city = '{old}' where id = {rng.randint(1, 9)};"
    return _task(
        f"All customers in {old} moved to {new}. Update their city.",
        script,
        [f"update customers set city = '{new}' where city = '{old}'"],
        (*_describe("customers"), _read(f"select * from customers where city = '{old}'")),
    )


def cancel_orders(rng: random.Random) -> SuiteTask:
    script, day = shop_script(rng), rng.randint(20, 60)
    script += f"\ninsert into orders values (31, 1, 1, 2, 'open', {day});"
    return _task(
        f"Cancel every open order up to day {day}, including that day: set its status to "
        "cancelled. Leave all other orders alone.",
        script,
        [f"update orders set status = 'cancelled' where status = 'open' and day <= {day}"],
        (*_describe("orders"), _read(f"select id, status from orders where day <= {day}")),
    )


def top_customers(rng: random.Random) -> SuiteTask:
    count = rng.randint(2, 4)
    query = (
        "select c.name, sum(o.amount * p.price) as total from orders o "
        "join customers c on c.id = o.customer_id join products p on p.id = o.product_id "
        f"where o.status = 'shipped' group by c.id order by total desc, c.name limit {count}"
    )
    return _task(
        f"Create the table top_customers with the columns name and total. Fill it with the {count} "
        "customers whose shipped orders have the largest total value (amount times price); of "
        "equal totals, the name that comes first in the alphabet counts.",
        shop_script(rng, orders=50),
        [
            "create table top_customers (name text, total integer)",
            f"insert into top_customers {query}",
        ],
        (*_describe("customers", "products", "orders"), _read(query)),
    )


def raise_prices(rng: random.Random) -> SuiteTask:
    least, extra = rng.randint(4, 6), rng.randint(2, 9)
    script, product = shop_script(rng, products=7, orders=40), rng.randint(1, 7)
    for n in range(41, 41 + least):  # at least one product must change
        values = (n, rng.randint(1, 9), product, rng.randint(1, 9), "open", rng.randint(1, 90))
        script += f"\ninsert into orders values {values};"
    popular = (
        "select product_id from orders where status <> 'cancelled' "
        f"group by product_id having count(*) >= {least}"
    )
    return _task(
        f"Raise the price by {extra} for every product that has at least {least} orders which are "
        "not cancelled.",
        script,
        [f"update products set price = price + {extra} where id in ({popular})"],
        (*_describe("products", "orders"), _read(popular)),
    )


def merge_customers(rng: random.Random) -> SuiteTask:
    script = shop_script(rng)
    for n, original in enumerate(rng.sample(range(1, 10), 3), 10):
        script += (
            f"\ninsert into customers select {n}, name, city from customers where id = {original};"
            f"\ninsert into orders values ({n + 30}, {n}, 1, {rng.randint(1, 5)}, 'open', 70);"
        )
    first = (
        "select min(b.id) from customers a join customers b on a.name = b.name "
        "and a.city = b.city where a.id = orders.customer_id"
    )
    return _task(
        "Some customers exist twice, with the same name and city. For each of them, assign all "
        "orders to the lowest id and delete the other entries.",
        script,
        [
            f"update orders set customer_id = ({first})",
            "delete from customers where id not in "
            "(select min(id) from customers group by name, city)",
        ],
        (
            *_describe("customers"),
            _read("select name, city, count(*) from customers group by 1, 2 having count(*) > 1"),
        ),
    )


def archive_orders(rng: random.Random) -> SuiteTask:
    day = rng.randint(30, 60)
    chosen = f"from orders where status <> 'open' and day < {day}"
    return _task(
        f"Move the orders before day {day} that are not open to a new table archive with the same "
        "columns as orders: insert them there and delete them from orders.",
        shop_script(rng, orders=40),
        [
            "create table archive (id integer, customer_id integer, product_id integer, "
            "amount integer, status text, day integer)",
            f"insert into archive select * {chosen}",
            f"delete {chosen}",
        ],
        (*_describe("orders"), _read(f"select count(*) {chosen}")),
    )


def ship_orders(rng: random.Random) -> SuiteTask:
    script = shop_script(rng, products=5, orders=24)
    script += "\nupdate products set stock = stock % 17;"
    demand = (
        "(select sum(amount) from orders o where o.product_id = products.id and o.status = 'open')"
    )
    return _task(
        "Ship what is in stock: for each product whose stock covers the amounts of all its open "
        "orders together, set these orders to shipped and subtract their amounts from the stock. "
        "For every other product, set its open orders to the new status backorder and leave the "
        "stock as it is.",
        script,
        [
            "update orders set status = 'backorder' where status = 'open' and product_id in "
            f"(select id from products where stock < {demand})",
            f"update products set stock = stock - coalesce({demand}, 0)",
            "update orders set status = 'shipped' where status = 'open'",
        ],
        (
            *_describe("products", "orders"),
            _read("select product_id, sum(amount) from orders where status = 'open' group by 1"),
            _read("select id, stock from products"),
        ),
    )


def city_table(rng: random.Random) -> SuiteTask:
    return _task(
        "Store the cities in a table of their own: create cities with the columns id and name, "
        "one row per city of a customer, numbered from 1 in alphabetical order. Add the column "
        "city_id to customers, filled with the id of the customer's city, and drop the column "
        "city of customers.",
        shop_script(rng),
        [
            "create table cities (id integer primary key, name text)",
            "insert into cities (name) select distinct city from customers order by city",
            "alter table customers add column city_id integer",
            "update customers set city_id = (select id from cities where name = customers.city)",
            "alter table customers drop column city",
        ],
        (*_describe("customers"), _read("select distinct city from customers order by 1")),
    )


def price_log(rng: random.Random) -> SuiteTask:
    number, price = rng.randint(1, 8), rng.randint(100, 200)
    return _task(
        "From now on, the database must record every change of a price by itself: create the "
        "table price_log with the columns product_id, old_price and new_price, and a trigger on "
        "products that adds a row when an update changes a price to another value. Then set the "
        f"price of the product with the id {number} to {price}.",
        shop_script(rng),
        [
            "create table price_log (product_id integer, old_price integer, new_price integer)",
            "create trigger log_price after update of price on products "
            "when old.price <> new.price begin "
            "insert into price_log values (new.id, old.price, new.price); end",
            f"update products set price = {price} where id = {number}",
        ],
        _describe("products"),
        probes=(
            "update products set price = price + 7 where id < 4",
            "update products set stock = stock + 1, price = price",
            "select * from price_log",
        ),
    )


TEMPLATES = {
    "Restock": Template("easy", restock),
    "NewCustomer": Template("easy", new_customer),
    "MoveCity": Template("easy", move_city),
    "CancelOrders": Template("easy", cancel_orders),
    "TopCustomers": Template("medium", top_customers),
    "RaisePrices": Template("medium", raise_prices),
    "MergeCustomers": Template("medium", merge_customers),
    "ArchiveOrders": Template("medium", archive_orders),
    "ShipOrders": Template("hard", ship_orders),
    "CityTable": Template("hard", city_table),
    "PriceLog": Template("hard", price_log),
}
