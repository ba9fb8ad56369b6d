"""Environments for tools: a question with one right answer, and a shop with an MCP database."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gem_core.env.base import Env, ResetResult, StepResult


class Quiz(Env):
    """Ask one question; end at a right answer or after `turns` turns."""

    execution = "inline"

    def __init__(self, questions: Mapping[str, str] | None = None, turns: int = 1) -> None:
        self.questions = dict(questions or {"What is 2 + 2?": "4"})
        self.turns = turns

    def on_reset(self, options: Mapping[str, Any]) -> ResetResult:
        self.question = self.rng.choice(sorted(self.questions))
        return self.question, {}

    def on_step(self, action: str) -> StepResult:
        right = self.questions[self.question] == action.strip()
        over = right or self.turn + 1 >= self.turns
        info = {"success": right} if over else {}
        return "Right." if right else "Wrong.", float(right), over, False, info

    def sample_action(self) -> str:
        return self.action_rng.choice(sorted(self.questions.values()))


class Shop(Env):
    """The task is to mark the largest open order as shipped; success is read from the database."""

    def __init__(self, database: str) -> None:
        self.database = database

    def on_reset(self, options: Mapping[str, Any]) -> ResetResult:
        Path(self.database).unlink(missing_ok=True)
        with sqlite3.connect(self.database) as db:
            db.execute("create table orders (id integer primary key, customer text, status text)")
            db.execute("create table items (order_id integer, price real, amount integer)")
            for id in range(1, 6):
                db.execute(
                    "insert into orders values (?, ?, ?)",
                    (id, f"customer {id}", "open" if id != 3 else "shipped"),
                )
                for _ in range(3):
                    db.execute(
                        "insert into items values (?, ?, ?)",
                        (id, self.rng.randint(1, 90), self.rng.randint(1, 9)),
                    )
            # The largest order, but not open.
            db.execute("insert into items values (3, 10000, 1)")
        db.close()
        task = (
            "Mark the open order with the largest sum of price times amount as 'shipped', "
            "then answer with its id."
        )
        return task, {}

    def on_step(self, action: str) -> StepResult:
        db = sqlite3.connect(self.database)
        rows = db.execute("select id from orders where status = 'shipped' and id != 3")
        shipped = {id for (id,) in rows}
        sums = dict(
            db.execute(
                "select order_id, sum(price * amount) from items "
                "where order_id != 3 group by order_id"
            )
        )
        db.close()
        best = max(sums, key=sums.__getitem__)
        right = shipped == {best} and action.strip() == str(best)
        message = "Done." if right else f"Wrong: {sorted(shipped)} are shipped."
        return message, float(right), True, False, {"success": right}
