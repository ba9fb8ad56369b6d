"""Tests of the MCP suite: experts, cheats, isolation, pooled servers and the end of a run."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from boxes import descendants
from cheats import MCP_TAMPERING, play
from costly import few_of

from gem_check.checker import check_env
from gem_core import list_envs, make, run_batch, tasks_for
from gem_core.errors import ConfigError, OptionError
from gem_core.policies.players import ExpertPlayer, expert_of
from gem_envs.mcp_suite import postgres, sqlite_reader
from gem_envs.mcp_suite.env import McpTask
from gem_envs.mcp_suite.families import templates_of
from gem_envs.mcp_suite.ids import SUITES
from gem_envs.mcp_suite.postgres_server import server_of
from gem_envs.mcp_suite.repository import GitState, History, write_repository
from gem_envs.mcp_suite.sqlite_tasks import raise_prices
from gem_envs.mcp_suite.task import LEVELS
from gem_tools.calls import write_call
from gem_tools.tool import ToolCall, ToolError

SEEDS = range(20)
TEMPLATES = [(suite, name) for suite in SUITES for name in templates_of(suite)]


def call(name: str, /, **arguments: Any) -> str:
    return write_call(ToolCall(name, arguments), "json")


def run_sql(suite: str, statement: str) -> str:
    if suite == "Postgres":
        return call("execute_sql", sql=statement)
    return call("write_query", query=statement)


FIRST = {"Sqlite": "Restock", "Postgres": "ReturnBook"}
FILL_DISK = """do $$ begin for n in 1..99 loop
execute format('create table t%s as select repeat(md5(x::text), 60) as a, x
from generate_series(1, 10000) x', n); end loop; end $$"""
FILL_TEMPORARY = "select count(*) from (select x from generate_series(1, 9000000) x order by 1) t"


def suppress_errors(function: Any, *arguments: Any) -> None:
    with suppress(Exception):
        function(*arguments)


def solve(env: Any, seed: int) -> tuple[float, dict[str, Any]]:
    env.reset(seed=seed)
    expert = expert_of(env)
    assert expert is not None
    for action in expert():
        _, reward, _, _, info = env.step(action)
    return reward, info


def some_of_each_suite(count: int) -> list[Any]:
    chosen = []
    for suite in SUITES:
        names = list(templates_of(suite))
        chosen += [
            pytest.param(suite, name, marks=[pytest.mark.slow] if n >= count else [])
            for n, name in enumerate(reversed(names))
        ]
    return chosen


def test_every_suite_has_ten_templates_of_all_levels_and_its_ids() -> None:
    for suite in SUITES:
        templates = templates_of(suite)
        assert len(templates) >= 10
        assert {template.level for template in templates.values()} == set(LEVELS)
    names = [f"{suite}-v0{end}" for suite in SUITES for end in ("", *(f"-{x}" for x in LEVELS))]
    assert list_envs("mcp:*") == sorted(f"mcp:{name}" for name in names)


@pytest.mark.parametrize(("suite", "template"), some_of_each_suite(1))
def test_expert_solves_the_template_in_3_to_12_calls(suite: str, template: str) -> None:
    with make(f"mcp:{suite}-v0", template=template) as env:
        for seed in SEEDS[:2]:
            reward, info = solve(env, seed)
            assert reward == 1.0 and 3 <= info["tool_uses"] <= 12, (seed, info)


@pytest.mark.slow
@pytest.mark.parametrize(("suite", "template"), TEMPLATES)
def test_expert_solves_the_template_on_twenty_seeds(suite: str, template: str) -> None:
    with make(f"mcp:{suite}-v0", template=template) as env:
        assert [solve(env, seed)[0] for seed in SEEDS] == [1.0] * len(SEEDS)


@pytest.mark.parametrize(("suite", "template"), some_of_each_suite(1))
def test_cheating_is_not_paid(suite: str, template: str) -> None:
    with make(f"mcp:{suite}-v0", template=template) as env:
        for seed in SEEDS[:1]:
            prompt = env.reset(seed=seed)[0]
            players = {
                "null": [""],
                "nonsense": ["colorless green ideas"],
                "prompt": [prompt],
                "format": [call("get_current_time", timezone="UTC"), call("no_such_tool"), "done"],
                "tamper": [*(call(name, **args) for name, args in MCP_TAMPERING[suite]), "done"],
            }
            for name, actions in players.items():
                assert play(env, seed, actions) <= 0.2, (suite, template, seed, name)


def test_a_change_that_nobody_asked_for_fails_the_task() -> None:
    with make("mcp:Sqlite-v0", template="Restock") as env:
        env.reset(seed=1)
        solution = [call(name, **arguments) for name, arguments in env.task.solution]
        extra = call("write_query", query="update customers set city = 'Nowhere' where id = 1")
        assert play(env, 1, [*solution, "done"]) == 1.0
        assert play(env, 1, [*solution, extra, "done"]) == 0.0


@pytest.mark.parametrize(
    ("template", "statements"),
    [
        (
            "OverdueView",
            # survives its cancellation
            [
                "create function f() returns integer language plpgsql as $$ begin loop begin "
                "perform pg_sleep(1000); exception when query_canceled then end; end loop; end $$",
                "create view overdue as select f() as id, '' as name, '' as title",
            ],
        ),
        (
            "OverdueView",
            # small when it is measured, large when it is read
            [
                "create sequence s",
                "create view overdue as select 1 as id, '' as name, "
                "repeat('x', case when nextval('s') > 1 then 100000000 else 1 end) as title "
                "from generate_series(1, 20)",
            ],
        ),
        (
            "PriceLog",
            [
                "create table price_log as with recursive n(x) as "
                "(select 1 union all select x + 1 from n limit 900) select x as product_id, "
                "zeroblob(50000) as old_price, 1 as new_price from n"
            ],
        ),
        (
            "PriceLog",
            [
                "create view price_log as select a || a as product_id, 1 as old_price, "
                "1 as new_price from (select hex(zeroblob(400000000)) as a)"
            ],
        ),
    ],
)
def test_database_that_never_ends_or_is_huge_fails_the_task(
    template: str, statements: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "_SECONDS_TO_READ", 2.0)
    suite = "Postgres" if template in templates_of("Postgres") else "Sqlite"
    with make(f"mcp:{suite}-v0", template=template) as env:
        env.reset(seed=1)
        actions = [run_sql(suite, statement) for statement in statements]
        for action in actions:
            observation = env.step(action)[0]
            assert "rror" not in observation, observation
        began = time.monotonic()
        assert play(env, 1, [*actions, "done"]) == 0.0
        assert time.monotonic() - began < 300.0
        monkeypatch.undo()
        assert solve(env, 1)[0] == 1.0


@pytest.mark.parametrize(
    "statement",
    [
        "create index extra on orders (day)",
        "create trigger extra after insert on orders begin delete from products; end",
        "alter table loans add check (id > 0)",
        "alter table members alter name type varchar(90)",
        "alter table members alter joined drop not null",
        "create index extra on loans (taken)",
        "create function extra() returns integer language sql as 'select 1'",
        "create type mood as enum ('sad', 'happy')",
        "create schema extra",
        "alter table loans enable row level security",
        "create rule extra as on delete to loans do instead nothing",
    ],
)
def test_definition_that_nobody_asked_for_fails_the_task(statement: str) -> None:
    suite = "Sqlite" if any(table in statement for table in ("orders", "custom")) else "Postgres"
    with make(f"mcp:{suite}-v0", template=FIRST[suite]) as env:
        env.reset(seed=1)
        solution = [call(name, **arguments) for name, arguments in env.task.solution]
        assert play(env, 1, [*solution, "done"]) == 1.0
        assert play(env, 1, [*solution, run_sql(suite, statement), "done"]) == 0.0


def test_other_names_and_types_solve_a_task_that_asks_for_definitions() -> None:
    with make("mcp:Sqlite-v0", template="CityTable") as env:
        env.reset(seed=1)
        own = [call(name, **arguments) for name, arguments in env.task.solution]
        table = "create table cities (id integer primary key autoincrement, name varchar not null)"
        own = [call("create_table", query=table) if "create table" in a else a for a in own]
        assert play(env, 1, [*own, "done"]) == 1.0
    with make("mcp:Postgres-v0", template="ForbidMistakes") as env:
        env.reset(seed=1)
        own = [call(name, **arguments) for name, arguments in env.task.solution]
        index = run_sql("Postgres", "create unique index one_title on books (title)")
        own = [index if "unique" in action else action for action in own]
        assert play(env, 1, [*own, "done"]) == 1.0


def test_full_disk_and_temporary_files_of_an_episode_do_not_reach_another_one() -> None:
    with make("mcp:Postgres-v0") as one, make("mcp:Postgres-v0") as two:
        one.reset(seed=1)
        text = one.step(call("execute_sql", sql=FILL_DISK))[0]
        assert "could not extend file" in text
        text = one.step(call("execute_sql", sql=FILL_TEMPORARY))[0]
        assert "temp_file_limit" in text or "No space left" in text
        assert solve(two, 2)[0] == 1.0
        assert one.step("done")[1] == 0.0
        assert solve(one, 3)[0] == 1.0


def test_settings_of_a_repository_do_not_count_in_the_check(tmp_path: Path) -> None:
    path, ran = str(tmp_path / "repo"), tmp_path / "ran"
    history = History()
    history.commit("first", {"a.txt": "1\n"})
    write_repository(path, history.text())
    config = Path(path, ".git/config")
    config.write_text(f"{config.read_text()}[core]\nfsmonitor = touch {ran}; echo\n")
    Path(path, ".git/info/exclude").write_text("*")
    Path(path, ".git/info/grafts").write_text("")
    state = GitState(path, str(tmp_path / "git"))
    assert state.clean() and state.current() == "main" and state.subjects() == ["first"]
    Path(path, "new.txt").write_text("2")
    assert not GitState(path, str(tmp_path / "git")).clean()
    assert not ran.exists()


@pytest.mark.parametrize("replaced", [False, True])
def test_repository_that_was_moved_away_fails_the_task(replaced: bool) -> None:
    with make("mcp:Git-v0", template="CommitFile") as env:
        actions = [call("move_file", source="/data/repo", destination="/data/away")]
        if replaced:
            actions.append(call("write_file", path="/data/repo", content="gone"))
        assert play(env, 1, [*actions, "done"]) == 0.0
        assert env.unwrapped.errors == 0
        assert solve(env, 1)[0] == 1.0


COSTLY = """create view price_log as with recursive n(x) as
(select 1 union all select x + 1 from n limit 9000)
select sum(length(hex(zeroblob(9000000 + x)))) as product_id from n"""


def test_view_that_takes_too_long_fails_the_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = Path(sqlite_reader.__file__).read_text()
    impatient = tmp_path / "sqlite_reader.py"
    impatient.write_text(reader.replace("_MOST_SECONDS = 30", "_MOST_SECONDS = 1"))
    assert impatient.read_text() != reader
    monkeypatch.setattr(sqlite_reader, "__file__", str(impatient))
    with make("mcp:Sqlite-v0", template="PriceLog") as env:
        assert play(env, 1, [run_sql("Sqlite", COSTLY), "done"]) == 0.0
        assert solve(env, 1)[0] == 1.0


def test_info_has_the_keys_of_tools() -> None:
    with make("mcp:Files-v0") as env:
        env.reset(seed=1)
        action = call("list_directory", path="/data") + call("fly")
        info = env.step(action)[4]
        assert info["tool_error"] and info["use_tool"] and info["role"] == "tool"
        assert [(c["name"], c["error"]) for c in info["tool_calls"]] == [
            ("list_directory", False),
            ("fly", True),
        ]
        counts = {"tool_uses": 2, "tool_successes": 1, "tool_errors": 1}
        assert counts.items() <= info.items()
        assert counts.items() <= env.step("done")[4].items()


def test_message_with_many_calls_makes_only_the_first_ones() -> None:
    with make("mcp:Sqlite-v0") as env:
        env.reset(seed=1)
        observation = env.step(call("get_current_time", timezone="UTC") * 20)[0]
        assert "Only the first 16 of 20 calls were made." in observation
        assert env.unwrapped.uses == 16


def test_postgres_that_died_is_started_again() -> None:
    with make("mcp:Postgres-v0") as env:
        assert solve(env, 1)[0] == 1.0
        env.reset(seed=2)
        server_of(env.unwrapped.slot.number).close()
        with pytest.raises(ToolError, match="PostgreSQL ended during the episode"):
            env.step("done")
        assert solve(env, 2)[0] == 1.0


def test_json_value_of_another_type_fails_the_check() -> None:
    task = templates_of("Files")["UpdateJson"].draw(random.Random(1))
    written = {a["path"]: a["content"] for name, a in task.solution if name == "write_file"}
    files = {path.removeprefix("/data/"): text.rstrip() for path, text in written.items()}
    people = files["people.json"]
    assert task.check(files)
    assert task.check({**files, "people.json": people.replace(" ", "")})
    assert not task.check({**files, "people.json": people.replace("true", "1", 1)})
    assert not task.check({**files, "people.json": people.replace("false", "0.0")})


def test_raised_prices_change_for_every_seed() -> None:
    for seed in range(300):
        task = raise_prices(random.Random(seed))
        database = sqlite3.connect(":memory:")
        database.executescript(task.setup.script)
        before = database.execute("select * from products").fetchall()
        for statement in task.setup.reference:
            database.execute(statement)
        assert database.execute("select * from products").fetchall() != before
        database.close()


def test_seed_determines_the_task() -> None:
    with make("mcp:Files-v0") as env:
        first = [(env.reset(seed=seed)[0], env.task.setup) for seed in range(6)]
        assert [(env.reset(seed=seed)[0], env.task.setup) for seed in range(6)] == first
        assert len({str(setup) for _, setup in first}) == 6
        info = env.reset(seed=0, options={"template": "MergeCsv"})[1]
        assert (info["template"], info["level"]) == ("MergeCsv", "medium")
        assert {"read_text_file", "get_current_time"} <= {
            tool["function"]["name"] for tool in info["tools"]
        }
        with pytest.raises(OptionError, match="template must be one of ChangeSetting"):
            env.reset(seed=0, options={"template": "Juggle"})


@pytest.mark.parametrize("suite", few_of(["Files", *(s for s in SUITES if s != "Files")], 1))
def test_suite_passes_check_env(suite: str) -> None:
    check_env(f"mcp:{suite}-v0", processes=False)


def test_invalid_arguments_are_errors() -> None:
    with pytest.raises(ConfigError, match="suite must be one of Sqlite"):
        McpTask("Oracle")
    with pytest.raises(ConfigError, match="level must be one of easy"):
        McpTask("Files", level="brutal")
    with pytest.raises(ConfigError, match="style must be"):
        McpTask("Files", style="yaml")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="template must be one of"):
        McpTask("Files", template="Juggle")
    with pytest.raises(ConfigError, match="ApplyChanges is hard, but level is 'easy'; use the id"):
        make("mcp:Files-v0-easy", template="ApplyChanges")
    assert make("mcp:Files-v0-hard", template="ApplyChanges").unwrapped.template == "ApplyChanges"


def test_wrong_calls_are_answered_and_the_last_message_is_scored() -> None:
    with make("mcp:Files-v0", template="IndexFile", max_turns=4) as env:
        env.reset(seed=3)
        assert "There is no tool 'fly'" in env.step(call("fly"))[0]
        assert "needs the argument(s) path" in env.step(call("read_text_file"))[0]
        assert "access denied" in env.step(call("read_text_file", path="/etc/passwd"))[0]
        observation, reward, terminated, truncated, info = env.step(call("list_directory", path=""))
        assert (reward, terminated, truncated) == (0.0, False, True)
        assert "last of 4 messages" in observation and info["tool_uses"] == 4


@pytest.mark.parametrize("suite", few_of(["Postgres", *(s for s in SUITES if s != "Postgres")], 1))
def test_32_concurrent_episodes_are_solved_with_their_own_data(suite: str) -> None:
    tasks = tasks_for(f"mcp:{suite}-v0", seeds=range(32))
    episodes = run_batch(tasks, ExpertPlayer(), concurrency=32)
    assert [episode.total_reward for episode in episodes] == [1.0] * 32


def test_episodes_cannot_reach_the_data_of_others() -> None:
    with make("mcp:Sqlite-v0") as one, make("mcp:Sqlite-v0") as two:
        one.reset(seed=1)
        two.reset(seed=1)
        one.step(call("create_table", query="create table secret (word text)"))
        assert "secret" not in two.step(call("list_tables"))[0]
        path = f"{one.unwrapped.slot.folder}/data.db"
        answer = two.step(call("write_query", query=f"create table x as select '{path}'"))[0]
        assert "changed" in answer
        stolen = call("read_query", query=f"select * from '{path}'")
        assert "no such table" in two.step(stolen)[0]
    with make("mcp:Postgres-v0") as one, make("mcp:Postgres-v0") as two:
        one.reset(seed=1)
        two.reset(seed=1)
        one.step(call("execute_sql", sql="create table secret (word text)"))
        assert "secret" not in two.step(call("list_objects"))[0]
        for sql in (
            "create extension dblink",
            "copy (select 1) to program 'true'",
            "select pg_read_file('/etc/passwd')",
            "set role admin",
        ):
            answer = two.step(call("execute_sql", sql=sql))[0]
            assert "permission denied" in answer or "must be" in answer, (sql, answer)
        answer = two.step(call("execute_sql", sql="select datname from pg_database"))[0]
        assert f"episode_{one.unwrapped.slot.number}" not in answer


def test_servers_stay_and_data_go_between_episodes() -> None:
    with make("mcp:Files-v0") as env:
        env.reset(seed=1)
        server = env.slot.toolset.servers[0]
        env.step(call("write_file", path="/data/left.txt", content="left"))
        starts = server.starts
        env.reset(seed=2)
        assert "left.txt" not in env.step(call("directory_tree", path="/data"))[0]
        assert env.slot.toolset.servers[0] is server and server.starts == starts


ENDLESS = "with recursive n(x) as (select 1 union all select x + 1 from n) select max(x) from n"


ENDLESS_WRITE = """create table t as with recursive n(x) as
(select 1 union all select x + 1 from n) select x, zeroblob(1000) from n where x < 20000"""


def test_database_that_a_statement_still_locks_fails_the_task() -> None:
    with make("mcp:Sqlite-v0", template="Restock") as env:
        env.reset(seed=1)
        env.tools["write_query"].seconds = 2.0
        assert "given up" in env.step(run_sql("Sqlite", ENDLESS_WRITE))[0]
        assert env.step("done")[1] == 0.0


def test_server_that_is_still_busy_is_not_used_again() -> None:
    with make("mcp:Sqlite-v0", template="Restock") as env:
        env.reset(seed=1)
        env.tools["read_query"].seconds = 0.5
        assert "given up" in env.step(call("read_query", query=ENDLESS))[0]
        slot = env.slot
        assert env.step("done")[2]
        assert solve(env, 1)[0] == 1.0
        assert not Path(slot.folder).exists()


def test_step_that_runs_on_after_close_does_not_reach_the_next_episode() -> None:
    """The engine closes an environment whose step exceeds its deadline; the step runs on."""
    first, second = make("mcp:Sqlite-v0", template="Restock"), make("mcp:Sqlite-v0")
    first.reset(seed=1)
    slot = first.slot
    message = call("read_query", query=ENDLESS) + call("write_query", query="drop table orders")
    step = threading.Thread(target=lambda: suppress_errors(first.step, message), daemon=True)
    step.start()
    while not slot.busy:
        time.sleep(0.01)
    first.close()
    with second:
        assert solve(second, 2)[0] == 1.0
        step.join(60.0)
        second.reset(seed=3)
        assert not step.is_alive() and second.slot is not slot
        assert "orders" in second.step(call("list_tables"))[0]


def test_time_server_does_not_import_from_the_working_folder(tmp_path: Path) -> None:
    script, work = tmp_path / "script.py", tmp_path / "work"
    script.write_text(
        "from gem_envs.mcp_suite.pool import _distractors\nprint(len(_distractors().tools()))"
    )
    work.mkdir()
    for name in ("argparse", "asyncio", "mcp", "typing"):
        (work / f"{name}.py").write_text("open('ran', 'w')")
    done = subprocess.run(
        [sys.executable, script],
        cwd=work,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "2\n", done.stderr
    assert not (work / "ran").exists()


def test_nothing_is_left_of_a_killed_run() -> None:
    program = (
        "from gem_core import make\n"
        "from gem_envs.mcp_suite.scratch import scratch_folder\n"
        "envs = [make(f'mcp:{suite}-v0') for suite in ('Postgres', 'Git', 'Workplace')]\n"
        "for env in envs: env.reset(seed=1)\n"
        "print(scratch_folder(), flush=True)\ninput()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None and process.stdin is not None
    folder = Path(process.stdout.readline().strip())
    processes = descendants(process.pid)
    assert folder.is_dir() and len(processes) > 10
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdin.close()
    process.stdout.close()
    deadline = time.monotonic() + 60
    while folder.parent.exists() or any(Path(f"/proc/{pid}").exists() for pid in processes):
        assert time.monotonic() < deadline, (folder, [p for p in processes if _alive(p)])
        time.sleep(0.1)


def _alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
