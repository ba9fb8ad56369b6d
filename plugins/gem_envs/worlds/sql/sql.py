"""SQL environment: answer a question with one query, after exploring the database."""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gem_core.arguments import whole_number
from gem_core.env.base import ResetResult, StepResult
from gem_core.errors import UnknownNameError
from gem_envs.games.base import Game
from gem_envs.worlds.sql.database import QueryError, Row, draw_database, draw_names
from gem_envs.worlds.sql.domains import DOMAINS
from gem_envs.worlds.sql.questions import LEVELS, Level, draw_question
from gem_tools.calls import without_thinking

__all__ = ["SQL"]

_LANGUAGE = re.compile(r"(?:sql(?:ite3?)?)?[ \t]*\n?", re.IGNORECASE)
_ACTION = re.compile(r"^[ \t]*Action[ \t]*:", re.MULTILINE | re.IGNORECASE)
_SUBMIT = re.compile(r"submit\b[\s:]*", re.IGNORECASE)
_LONGEST_ACTION = 20_000
_HIDDEN_DATABASES = 2
_SHOWN_ROWS, _SHOWN_CHARACTERS = 20, 60


class SQL(Game):
    """A question about an SQLite database; the reward is 1 for a correct query.

    A statement shows its result and costs a turn. `SUBMIT` before a statement ends the episode:
    the statement must return the gold query's rows on the database shown and on two hidden ones
    with other rows, so that a copied result earns nothing. With `explore=False` the first
    statement is the answer, as in AgentGym.
    """

    execution = "thread"  # a statement may take seconds
    action_example = "SUBMIT SELECT COUNT(*) FROM orders"

    def __init__(
        self, level: Level | None = None, explore: bool = True, max_turns: int = 8
    ) -> None:
        if level is not None and level not in LEVELS:
            raise UnknownNameError("SQL level", str(level), LEVELS)
        self.level, self.explore = level, explore
        self.max_turns = whole_number("max_turns", max_turns, 1)

    def on_reset(self, options: Mapping[str, Any]) -> ResetResult:
        level: Level = self.rng.choice(LEVELS) if self.level is None else self.level
        self._draw(level)
        how = (
            "A statement shows its result. Write SUBMIT before the statement that is your answer. "
            f"You have {self.max_turns} turns."
            if self.explore
            else "Your first statement is your answer."
        )
        schema = "\n".join(f"{statement};" for statement in self.database.domain.schema())
        hint = f"\nHint: {self.question.hint}." if self.question.hint else ""
        return (
            "Answer a question with one SELECT statement for SQLite. You may explain your "
            "thoughts; put the statement into a block that starts with ```sql and ends with ```. "
            f"The statement must also be right for other rows. {how}\n\n{schema}\n\n"
            f"Question: {self.question.text}{hint}",
            {"level": level, "domain": self.database.domain.name},
        )

    def _draw(self, level: Level) -> None:
        """Draw databases and a question until the hidden databases have another answer."""
        while True:
            rng = random.Random(self.rng.getrandbits(64))
            domain = rng.choice(DOMAINS)
            actors, items = draw_names(rng)
            databases = [
                draw_database(domain, actors, items, rng) for _ in range(1 + _HIDDEN_DATABASES)
            ]
            question = draw_question(level, domain, actors, items, rng)
            results = [database.run(question.query)[1] for database in databases]
            best = [database.run(question.top_two)[1] for database in databases if question.top_two]
            if (
                all(results)
                and not any(None in row for result in results for row in result)
                and any(result != results[0] for result in results[1:])
                and not any(len(two) == 2 and two[0] == two[1] for two in best)
            ):
                self.database, self.hidden = databases[0], databases[1:]
                self.question = question
                return

    def on_step(self, action: str) -> StepResult:
        submitted, statement = _statement(action)
        if not statement:
            return self.carry_on("There is no statement in that. Write one in a ```sql block.")
        if submitted or not self.explore:
            return self._score(statement)
        try:
            columns, rows = self.database.run(statement)
        except QueryError as error:
            return self.carry_on(f"Error: {error}.")
        return self.carry_on(_table(columns, rows))

    def _score(self, statement: str) -> StepResult:
        for database in (self.database, *self.hidden):
            try:
                rows = database.run(statement)[1]
            except QueryError as error:
                return self.lost(f"Error: {error}.")
            if not _same(rows, database.run(self.question.query)[1], self.question.ordered):
                return self.lost("The statement does not answer the question.")
        return self.won("The statement is correct.")

    def sample_action(self) -> str:
        """Show or submit a random column."""
        table, rows = self.action_rng.choice(self.database.tables)
        column = self.action_rng.choice(["*", "COUNT(*)", "name", "MAX(id)"])
        submit = "SUBMIT " if self.action_rng.random() < 0.3 else ""
        return f"{submit}SELECT {column} FROM {table} LIMIT {self.action_rng.randint(1, len(rows))}"

    def expert(self) -> Iterator[str]:
        """Submit the gold query, after a look at the events if there are turns for it."""
        if self.explore and self.max_turns > 1:
            yield f"SELECT * FROM {self.database.domain.fact.table} LIMIT 3"
        yield f"Thought: this is it.\nAction: SUBMIT ```sql\n{self.question.query}\n```"


def _statement(action: str) -> tuple[bool, str]:
    """Return whether a completion submits, and its last statement."""
    text = without_thinking(action)[:_LONGEST_ACTION]
    parts = text.split("```")  # text, block, text, block, ..., text
    if len(parts) > 2:
        last = (len(parts) - 1) // 2 * 2 - 1
        submitted = re.search(r"\bsubmit[\s:]*$", parts[last - 1], re.IGNORECASE) is not None
        statement = _LANGUAGE.sub("", parts[last], count=1).strip()
    else:
        submitted, statement = False, _ACTION.split(text)[-1].strip()
    if match := _SUBMIT.match(statement):
        submitted, statement = True, statement[match.end() :]
    return submitted, statement.strip()


def _same(rows: Sequence[Row], gold: Sequence[Row], ordered: bool) -> bool:
    """Whether two results are equal, up to rounding and, unless `ordered`, up to order."""
    if len(rows) != len(gold):
        return False
    mine, right = ([tuple(map(_rounded, row)) for row in result] for result in (rows, gold))
    return mine == right if ordered else Counter(mine) == Counter(right)


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4) if math.isfinite(value) else str(value)
    return value


def _table(columns: Sequence[str], rows: Sequence[Row]) -> str:
    """Return a result as text, with a limited number of rows and characters."""
    lines = [" | ".join(columns)]
    lines += [" | ".join(map(_shown, row)) for row in rows[:_SHOWN_ROWS]]
    if len(rows) > _SHOWN_ROWS:
        lines.append(f"... {len(rows)} rows")
    return "\n".join(lines) if rows else f"{lines[0]}\n(no rows)"


def _shown(value: Any) -> str:
    text = "NULL" if value is None else str(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."
