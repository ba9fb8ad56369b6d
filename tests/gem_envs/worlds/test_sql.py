"""Tests of the SQL world: execution match on hidden databases, and a sandboxed SQLite."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

import pytest

from gem_core import Limits, ScriptedPlayer, Task, run_batch
from gem_core.env.registry import make
from gem_core.errors import UnknownNameError
from gem_envs.worlds.sql import database
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
    observation = env.step(f"SELECT COUNT(*) FROM {joined}")[0]
    assert observation == "Error: the statement takes too long; it was stopped."


def test_statement_over_long_strings_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few steps of SQLite, each of them slow: the limit on steps would allow a minute."""
    monkeypatch.setattr(database, "_SECONDS", 0.5)
    env = sql()
    fact = env.database.domain.fact
    joined = f"{fact.table} a, (SELECT * FROM {fact.table} LIMIT 5) b"
    long = f"WITH s AS (SELECT group_concat(a.{fact.date}) x FROM {joined})"
    began = time.monotonic()
    observation = env.step(
        f"{long} SELECT SUM(instr(x, '@@')) FROM s, {fact.table} a, {fact.table} b, {fact.table} c"
    )[0]
    assert observation == "Error: the statement takes too long; it was stopped."
    assert time.monotonic() - began < 10
    assert env.step(f"SELECT COUNT(*) AS n FROM {fact.table}")[0] == "n\n160"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 cannot set SQLite's limits")
def test_large_value_is_rejected() -> None:
    env = sql()
    fact = env.database.domain.fact
    joined = f"{fact.table} a, {fact.table} b"
    observation = env.step(f"SELECT length(group_concat(a.{fact.date})) FROM {joined}")[0]
    assert observation == "Error: string or blob too big."


def test_slow_statement_does_not_block_other_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The statement runs in a thread, where the deadline of a step works."""
    released = threading.Event()

    def wait(*_: Any) -> Any:
        released.wait(60)
        return ["n"], [(1,)]

    def act(env: Any, observation: str) -> str:
        if env.spec.id.startswith("sql:"):
            monkeypatch.setattr(database.Database, "run", wait)
            return "SELECT 1"
        return "Action: move up"

    tasks = [Task("sql:Query-v0", seed=1), Task("maze:Random-v0", seed=1)]
    limits = Limits(max_turns=2, step_deadline=1.0)
    try:
        slow, other = run_batch(tasks, ScriptedPlayer(act), limits=limits)
    finally:
        released.set()
    assert slow.failed
    assert len(other.turns) == 2


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


@pytest.mark.parametrize("language", ["", "sql", "SQL ", "sqlite", "sqlite3"])
def test_language_of_a_block_is_not_part_of_the_statement(language: str) -> None:
    env: Any = make("sql:OneShot-v0").unwrapped
    env.reset(seed=0)
    assert env.step(f"```text\nfirst\n```\n```{language}\n{env.question.query}\n```")[1] == 1.0


def test_block_that_is_never_closed_is_read_in_linear_time() -> None:
    env = sql()
    began = time.monotonic()
    env.step("```" + " " * 19_000)
    assert time.monotonic() - began < 1


def test_no_database_has_null_in_the_gold_result() -> None:
    """SUM and TOTAL differ only for NULL, so both are right."""
    env = sql(level="moderate")
    for seed in range(120):
        env.reset(seed=seed)
        for shown_or_hidden in (env.database, *env.hidden):
            rows = shown_or_hidden.run(env.question.query)[1]
            assert not any(None in row for row in rows), seed


def test_unknown_level_is_rejected() -> None:
    with pytest.raises(UnknownNameError, match="challenging"):
        make("sql:Query-v0", level="hard")
