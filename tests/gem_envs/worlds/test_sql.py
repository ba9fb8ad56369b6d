"""Tests of the SQL world: execution match on hidden databases, and a sandboxed SQLite."""

from __future__ import annotations

from typing import Any

import pytest

from gem_core.env.registry import make
from gem_core.errors import UnknownNameError
from gem_envs.worlds.sql.questions import LEVELS


def sql(seed: int = 0, **kwargs: Any) -> Any:
    env = make("sql:Query-v0", **kwargs).unwrapped
    env.reset(seed=seed)
    return env


def literal(value: Any) -> str:
    if value is None:
        return "NULL"
    return repr(value) if isinstance(value, (int, float)) else f"'{value}'"


@pytest.mark.parametrize("level", LEVELS)
def test_a_copied_result_earns_nothing(level: str) -> None:
    """The gold rows as constants are right on the database shown, and wrong on the hidden ones."""
    env = sql(level=level)
    for seed in range(8):
        env.reset(seed=seed)
        rows = env.database.run(env.question.query)[1]
        values = ", ".join(f"({', '.join(map(literal, row))})" for row in rows)
        copied = f"SELECT * FROM (VALUES {values})"
        assert env.database.run(copied)[1] == rows
        _, reward, terminated, _, info = env.step(f"SUBMIT {copied}")
        assert (reward, terminated, info["success"]) == (0.0, True, False)


def test_query_may_be_written_in_another_way() -> None:
    env = sql(level="simple", seed=1)
    query = env.question.query
    assert (
        env.step(f"Thought: easy.\nAction: SUBMIT\n```sql\nSELECT * FROM ({query});\n```")[1] == 1
    )


def test_statement_shows_its_rows_and_the_database_does_not_change() -> None:
    env = sql()
    table = env.database.domain.fact.table
    observation, reward, terminated, *_ = env.step(f"SELECT COUNT(*) AS n FROM {table}")
    assert (observation, reward, terminated) == ("n\n160", 0.0, False)
    for attack in (f"DELETE FROM {table}", f"DROP TABLE {table}", f"UPDATE {table} SET id = 1"):
        assert env.step(attack)[0].startswith("Error:")
    assert env.step(f"SELECT COUNT(*) AS n FROM {table}")[0] == "n\n160"


@pytest.mark.parametrize(
    "statement",
    [
        "ATTACH DATABASE '/tmp/gem-attack.db' AS other",
        "PRAGMA writable_schema = 1",
        "SELECT load_extension('x')",
        "SELECT readfile('/etc/passwd')",
        "SELECT random()",
        "SELECT CURRENT_TIMESTAMP",
        "SELECT date('now')",
        "SELECT zeroblob(1000000000)",
        "WITH RECURSIVE t(s) AS (SELECT 'ab' UNION ALL SELECT s || s FROM t) SELECT * FROM t",
        "SELECT 1; SELECT 2",
        "VACUUM",
        "",
    ],
)
def test_statement_that_reads_or_writes_outside_fails(statement: str) -> None:
    observation, reward, terminated, *_ = sql().step(f"```sql\n{statement}\n```")
    assert observation.startswith(("Error:", "There is no statement"))
    assert (reward, terminated) == (0.0, False)


def test_endless_statement_is_interrupted() -> None:
    env = sql()
    table = env.database.domain.fact.table
    joined = ", ".join(f"{table} t{i}" for i in range(6))
    assert env.step(f"SELECT COUNT(*) FROM {joined}")[0] == "Error: interrupted."


def test_clock_functions_give_null_without_a_date() -> None:
    assert sql().step("SELECT strftime('%Y') AS a, strftime('%Y-%m', '2024-05-06') AS b")[0] == (
        "a | b\nNULL | 2024-05"
    )


def test_first_statement_is_the_answer_without_exploring() -> None:
    env: Any = make("sql:OneShot-v0").unwrapped
    env.reset(seed=0)
    assert env.step("SELECT 1")[2]
    env.reset(seed=0)
    assert env.step(env.question.query)[1] == 1.0


@pytest.mark.parametrize("opening", ["<think>", ""])
def test_statement_in_the_thinking_does_not_count(opening: str) -> None:
    env: Any = make("sql:OneShot-v0").unwrapped
    env.reset(seed=0)
    thinking = f"{opening}Perhaps\n```sql\nSELECT 1\n```\nNo.</think>"
    assert env.step(f"{thinking}\n{env.question.query}")[1] == 1.0


def test_unknown_level_is_rejected() -> None:
    with pytest.raises(UnknownNameError, match="challenging"):
        make("sql:Query-v0", level="hard")
