"""Tests of the registry: environments and wrappers by name, mixtures, and helpful errors."""

from __future__ import annotations

import importlib
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted_env import ScriptedEnv, Shout

from gem_core import Env, list_envs, make, register, register_wrapper, run_batch, spec, tasks_for
from gem_core.env.registry import canonical_wrappers, environments
from gem_core.env.wrapper_stack import parse_wrappers, wrappers
from gem_core.errors import (
    ConfigError,
    GemError,
    MissingDependencyError,
    RegistrationError,
    UnknownNameError,
)
from gem_core.policies.scripted import ScriptedPlayer
from gem_core.wrappers.formats import Boxed, React
from gem_core.wrappers.history import Concat, ConcatChat
from gem_core.wrappers.limits import TurnLimit
from gem_envs.games.guess_the_number import GuessTheNumber

EASY, HARD = "game:GuessTheNumber-v0-easy", "game:GuessTheNumber-v0-hard"
MIXTURE = f"3*{EASY} + 1*{HARD}"


@pytest.fixture(autouse=True)
def clean_registry() -> Iterator[None]:
    env_names, wrapper_names = set(environments.all()), set(wrappers.all())
    yield
    for name in set(environments.all()) - env_names:
        environments.remove(name)
    for name in set(wrappers.all()) - wrapper_names:
        wrappers.remove(name)


def stack(env: Env) -> list[type[Env]]:
    """Return the classes of an environment and its wrappers, innermost first."""
    classes: list[type[Env]] = [type(env)]
    while hasattr(env, "env"):
        env = env.env
        classes.insert(0, type(env))
    return classes


# Ids.


def test_registered_env_can_be_made_by_id() -> None:
    register(
        "test:Counting-v0-short",
        ScriptedEnv,
        kwargs={"execution": "inline"},
        wrappers=["statistics"],
        summary="counts",
    )
    env = make("test:Counting-v0-short")
    assert env.reset(seed=1) == ("T", {})
    assert (env.spec.id, env.spec.summary, env.unwrapped.spec.kwargs) == (
        "test:Counting-v0-short",
        "counts",
        {"execution": "inline"},
    )
    assert "test:Counting-v0-short" in list_envs()


@pytest.mark.parametrize(
    "id", ["GuessTheNumber", "game:", "Game:X-v0", "game:a b", "game:X+Y", "2*game:X", "", None, 5]
)
def test_register_rejects_a_malformed_id(id: Any) -> None:
    with pytest.raises(RegistrationError, match="namespace:Name"):
        register(id, ScriptedEnv)


@pytest.mark.parametrize(
    ("fact", "expected"),
    [
        ({"sumary": "x"}, "'sumary' is not a fact of an environment ('test:X'); the facts are: "),
        ({"reward": 1.0}, "reward of 'test:X' must be a str, got 1.0"),
        ({"tags": "puzzle"}, "tags of 'test:X' must be a tuple, got 'puzzle'"),
        ({"tags": None}, "tags of 'test:X' must be a tuple, got None"),
        ({"deterministic": "no"}, "deterministic of 'test:X' must be a bool, got 'no'"),
        ({"turns": "12"}, "turns of 'test:X' must be an integer >= 1 or None (no limit), got '12'"),
        ({"turns": -1}, "turns of 'test:X' must be an integer >= 1 or None (no limit), got -1"),
    ],
)
def test_register_rejects_a_wrong_fact(fact: Any, expected: str) -> None:
    with pytest.raises((RegistrationError, ConfigError), match=re.escape(expected)):
        register("test:X", ScriptedEnv, **fact)


def test_register_takes_wrappers_as_text_or_as_a_mapping() -> None:
    register("test:Y-v0", ScriptedEnv, wrappers={"boxed": {"place": "observation"}})
    assert make("test:Y-v0").place == "observation"  # type: ignore[attr-defined]
    register("test:X-v0", ScriptedEnv, wrappers="turn_limit(max_turns=2), boxed")
    assert isinstance(env := make("test:X-v0"), Boxed) and isinstance(env.env, TurnLimit)


@pytest.mark.parametrize(
    "id", ["test:X", "test:X-v0", "test:letter_counting", "test:GSM8K", "a_1:B2-v12-easy.hard"]
)
def test_register_accepts_well_formed_ids(id: str) -> None:
    assert register(id, ScriptedEnv).id == id


def test_registering_a_taken_id_names_its_owner() -> None:
    with pytest.raises(
        RegistrationError,
        match="already registered by the plugin 'gem_envs'; your own code cannot",
    ):
        register(EASY, ScriptedEnv)
    register("test:Mine-v0", ScriptedEnv)
    register("test:Mine-v0", "scripted_env:AsyncEnv", replace=True)
    assert type(make("test:Mine-v0")).__name__ == "AsyncEnv"


@pytest.mark.parametrize(
    ("id", "suggested"),
    [
        ("game:GuesTheNumber-v0", "game:GuessTheNumber-v0"),
        ("game:GuessTheNumber-v0-esy", EASY),
        ("GuessTheNumber-v0-easy", EASY),
    ],
)
def test_unknown_id_suggests_similar_ids(id: str, suggested: str) -> None:
    with pytest.raises(UnknownNameError, match=f"did you mean .*'{suggested}'.*gem-rl envs") as e:
        make(id)
    assert isinstance(e.value, LookupError)


def test_suggestions_list_substring_matches_before_similar_names() -> None:
    known = (
        "game:Guess-v0",
        "game:Guess-v0-easy",
        "code:Guest-v0",
        "game:Guild-v0",
        "text:MyGuess-v0",
    )
    assert "mean 'game:Guess-v0' or 'game:Guess-v0-easy' or 'text:MyGuess-v0'?" in str(
        UnknownNameError("kind", "guess", known)
    )
    message = str(UnknownNameError("kind", "game:Guesst-v0", known))
    assert "'game:Guess-v0'" in message
    assert "code:" not in message, "a name in the same namespace is preferred"
    assert "mean 'game:Guild-v0'" in str(UnknownNameError("kind", "gam:Guild-v0", known))


@pytest.mark.parametrize("id", [None, 5, ["game:X"]])
def test_make_rejects_a_non_string_id(id: Any) -> None:
    with pytest.raises(ConfigError, match="an environment id is a string"):
        make(id)


def test_list_envs_filters_by_pattern() -> None:
    assert EASY in list_envs("guess")
    assert list_envs("game:GuessTheNumber-v0-*") == [EASY, HARD, "game:GuessTheNumber-v0-random"]
    assert list_envs("nothing:*") == []
    assert list_envs() == sorted(list_envs())


def test_make_arguments_override_defaults_and_must_be_known() -> None:
    assert make(EASY, max_number=20).max_number == 20
    with pytest.raises(
        ConfigError,
        match=r"does not take 'max_nmber'; it takes: min_number, max_number, max_turns, randomize",
    ):
        make(EASY, max_nmber=20)

    class Bare(Env):
        pass

    register("test:Bare-v0", Bare)
    with pytest.raises(ConfigError, match="does not take 'size'; it takes: no arguments"):
        make("test:Bare-v0", size=3)
    register("test:Needs-v0", lambda *, size: ScriptedEnv())
    with pytest.raises(ConfigError, match="needs 'size'"):
        make("test:Needs-v0")
    assert isinstance(make("test:Needs-v0", size=3), ScriptedEnv)


@pytest.mark.parametrize(
    ("entry_point", "message"),
    [
        ("no_such_module:X", "cannot be imported"),
        ("scripted_env:Missing", "does not exist"),
        ("scripted_env:__doc__", "must be callable, got str"),
    ],
)
def test_make_reports_a_broken_entry_point(entry_point: str, message: str) -> None:
    register("test:Nowhere-v0", entry_point)
    with pytest.raises(RegistrationError, match=message):
        make("test:Nowhere-v0")


def test_missing_package_error_names_the_extra(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "needs_more.py").write_text("import missing_package\nclass X: pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    register("test:More-v0", "needs_more:X", extra="search")
    with pytest.raises(
        MissingDependencyError, match=r"pip install '\.\[search\]'.*missing_package"
    ) as missing:
        make("test:More-v0")
    assert isinstance(missing.value, ImportError)


@pytest.mark.parametrize("entry_point", [5, None, "module", "module:", ":name", "a b:c"])
def test_register_rejects_a_malformed_entry_point(entry_point: Any) -> None:
    with pytest.raises(RegistrationError, match="'module:name'"):
        register("test:Bad-v0", entry_point)


def test_entry_point_must_return_an_env() -> None:
    register("test:Dict-v0", dict)
    with pytest.raises(RegistrationError, match="must return a gem_core Env, got dict"):
        make("test:Dict-v0")


# Wrappers by name.


@pytest.mark.parametrize(
    "items",
    [
        ["turn_limit(max_turns=3)", "concat_chat(window=2)"],
        "turn_limit(max_turns=3), concat_chat(window=2)",
        "turn_limit( max_turns = 3 ),concat_chat(window=(2))",
        [("turn_limit", {"max_turns": 3}), ("concat_chat", {"window": 2})],
        [{"turn_limit": {"max_turns": 3}}, {"concat_chat": {"window": 2}}],
        {"turn_limit": {"max_turns": 3}, "concat_chat": {"window": 2}},
        [["turn_limit", {"max_turns": 3}], {"concat_chat": {"window": 2}}],
    ],
    ids=["texts", "one text", "one text, spaced", "pairs", "YAML list", "YAML mapping", "lists"],
)
def test_wrappers_have_several_equivalent_notations(items: Any) -> None:
    env = make(EASY, wrappers=items)
    assert stack(env) == [GuessTheNumber, Boxed, TurnLimit, ConcatChat]
    assert (env.window, env.env.max_turns) == (2, 3)
    assert canonical_wrappers(EASY, items) == canonical_wrappers(
        EASY, "turn_limit(max_turns=3),concat_chat(window=2)"
    )


@pytest.mark.parametrize(
    "items", [["concat"], "concat", [{"concat": None}], [("concat", None)], (Concat,)], ids=str
)
def test_wrapper_without_arguments_has_several_notations(items: Any) -> None:
    assert stack(make(EASY, wrappers=items)) == [GuessTheNumber, Boxed, Concat]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a(x=1, y=(2, 3)), b", [("a", {"x": 1, "y": (2, 3)}), ("b", {})]),
        ("a(x=[1, {'k': (2,)}]),b(y='),(')", [("a", {"x": [1, {"k": (2,)}]}), ("b", {"y": "),("})]),
        (" a , , b ", [("a", {}), ("b", {})]),
        ("", []),
    ],
)
def test_wrapper_line_is_split_at_top_level_commas(text: str, expected: Any) -> None:
    assert parse_wrappers(text) == expected


@pytest.mark.parametrize(
    "items",
    [
        None,
        3,
        "turn_limit(3)",
        "turn_limit(max_turns=",
        "turn_limit(max_turns=open('x'))",
        "a(**b)",
        [5],
        [None],
        [{}],
    ],
)
def test_parse_wrappers_rejects_malformed_input(items: Any) -> None:
    with pytest.raises(ConfigError, match=r"cannot read|is not a wrapper|wrappers must be a list"):
        parse_wrappers(items)


def test_unknown_name_without_similar_names_lists_all_if_few() -> None:
    error = UnknownNameError("kind", "zzz", ("beta", "alpha"))
    assert str(error) == "no kind is registered as 'zzz'; known names: alpha, beta."
    error = UnknownNameError("kind", "zzz", map(str, range(100)))
    assert str(error) == "no kind is registered as 'zzz'."


def test_make_reports_an_unusable_wrapper() -> None:
    with pytest.raises(
        UnknownNameError, match="no wrapper is registered as 'conct'; did you mean 'concat'"
    ):
        make(EASY, wrappers=["conct"])
    with pytest.raises(ConfigError, match="wrapper 'turn_limit' needs 'max_turns'"):
        make(EASY, wrappers=["turn_limit"])
    with pytest.raises(ConfigError, match="wrapper 'concat' does not take 'size'"):
        make(EASY, wrappers=["concat(size=3)"])
    with pytest.raises(RegistrationError, match="must return a gem_core Wrapper"):
        make(EASY, wrappers=[lambda env: env.unwrapped])


def test_requested_format_replaces_the_default_one() -> None:
    assert stack(make(EASY)) == [GuessTheNumber, Boxed]
    assert stack(make(EASY, wrappers=["react"])) == [GuessTheNumber, React]
    assert stack(make(EASY, wrappers=["concat", "react"])) == [GuessTheNumber, Concat, React]
    with pytest.raises(ConfigError, match=r"one action format, got \['react', 'boxed'\]"):
        make(EASY, wrappers=["react", "boxed"])


def test_registered_wrapper_can_be_used_by_name() -> None:
    register_wrapper("shout", Shout, kwargs={"mark": "?"})
    env = make("game:GuessTheNumber-v0-easy", wrappers=["shout"])
    env.reset(seed=1)
    assert env.mark == "?"
    assert make(EASY, wrappers=["shout(mark='!!')"]).mark == "!!"
    for name in ("Shout", "a b", "", "shout()"):
        with pytest.raises(RegistrationError, match="is not a wrapper name"):
            register_wrapper(name, Shout)
    with pytest.raises(RegistrationError, match="already registered"):
        register_wrapper("boxed", Shout)


# Mixtures.


def test_mixture_draws_components_by_weight() -> None:
    env = make(MIXTURE)
    chosen = Counter(env.reset(seed=seed)[1]["env_id"] for seed in range(400))
    assert set(chosen) == {EASY, HARD}
    assert 0.68 < chosen[EASY] / 400 < 0.82


def test_mixture_plays_the_same_episode_as_its_component() -> None:
    one, other = make(MIXTURE), make(MIXTURE)
    for seed in (5, 0, 7, 5):
        (observation, info), again = one.reset(seed=seed), other.reset(seed=seed)
        assert (observation, info) == again
        part = make(info["env_id"])
        assert part.reset(seed=seed)[0] == observation
        assert part.secret == one.secret


def test_mixture_wraps_every_component() -> None:
    env = make(MIXTURE, wrappers=["react", "concat"])
    for seed in range(4):
        env.reset(seed=seed)
        assert stack(env.env) == [GuessTheNumber, React, Concat]
    assert env.sample_action().startswith("Thought")


def test_spec_describes_a_mixture() -> None:
    mixture = spec(f"2 * {EASY}+{HARD}")
    assert (mixture.id, mixture.turns, mixture.deterministic) == (f"2*{EASY} + 1*{HARD}", 7, True)
    assert spec(f"{EASY} + game:GuessTheNumber-v0-random").turns is None
    assert make(MIXTURE).spec.id == MIXTURE


@pytest.mark.parametrize(
    "id",
    [
        f"0*{EASY} + {HARD}",
        f"-1*{EASY}+{HARD}",
        f"{EASY} +",
        f"x*{EASY}",
        f"1.2.3*{EASY}",
        f"{EASY} + 2*",
    ],
)
def test_make_rejects_a_malformed_mixture(id: str) -> None:
    with pytest.raises(ConfigError, match="weight"):
        make(id)


def test_mixture_reports_unknown_components_and_arguments() -> None:
    with pytest.raises(GemError, match=f"did you mean .*'{EASY}'"):
        make("game:GuessTheNumber-v0-esy + game:GuessTheNumber-v0-hard")
    with pytest.raises(ConfigError, match="does not take 'max_turns'"):
        make(MIXTURE, max_turns=3)


def test_closing_a_mixture_closes_all_components() -> None:
    log: list[str] = []
    register("test:A-v0", lambda: ScriptedEnv(log=log))
    register("test:B-v0", lambda: ScriptedEnv(log=log))
    make("test:A-v0 + test:B-v0").close()
    assert log.count("close") == 2


FILE = """
from gem_core import Env, register
from neighbour import GREETING

class Hello(Env):
    \"\"\"Say hello.\"\"\"

    def on_reset(self, options):
        return GREETING, {}

    def on_step(self, action):
        return "Bye.", 1.0, True, False, {"name": __name__}

class Registered(Hello):
    pass

register("test_file:Hello-v0", Registered, wrappers=["boxed"], turns=1)
"""


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "neighbour.py").write_text("GREETING = 'Good morning.'")
    (tmp_path / "greet.py").write_text(FILE)
    modules, path = set(sys.modules), list(sys.path)
    yield tmp_path / "greet.py"
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def test_class_in_a_file_needs_no_registration(file: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(file.parent)
    for id in ("greet.py:Hello", f"{file}:Hello"):
        env = make(id)
        assert env.reset(seed=0) == ("Good morning.", {})
        assert env.step("hi")[-1] == {"name": "greet"}
        assert spec(id).summary == "Say hello."
        assert list_envs(id) == [env.spec.id] == [id]
    assert make("2*greet.py:Hello + greet.py:Registered").reset(seed=0)[0]
    (episode,) = run_batch(
        tasks_for("greet.py:Hello", [0]), ScriptedPlayer(lambda env, observation: "hi")
    )
    assert episode.total_reward == 1.0


def test_class_in_a_file_keeps_the_facts_that_the_file_registers(file: Path) -> None:
    registered = spec(f"{file}:Registered")
    assert (registered.turns, registered.wrappers) == (1, ("boxed",))
    assert "boxed" in make(f"{file}:Registered").reset(seed=0)[1]["system"]
    assert spec(f"{file}:Hello").wrappers == ()


def test_class_in_a_file_is_played_in_another_process(file: Path) -> None:
    env = make(f"{file}:Hello", execution="process")
    assert env.reset(seed=0)[0] == "Good morning."
    env.close()


def test_file_of_an_imported_module_is_not_imported_again(file: Path, monkeypatch: Any) -> None:
    monkeypatch.syspath_prepend(file.parent)
    module = importlib.import_module("greet")
    assert spec(f"{file}:Hello").load() is module.Hello


def test_file_whose_name_is_taken_is_still_found(tmp_path: Path, file: Path) -> None:
    taken = tmp_path / "json.py"
    taken.write_text("from gem_core import Env\n\nclass Mine(Env):\n    pass\n")
    assert spec(f"{taken}:Mine").load().__name__ == "Mine"
    assert importlib.import_module("json").loads("1") == 1


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("no.py:Mine", None, "there is no file"),
        ("mine.py", "from gem_core import Env\nclass Mine(Env): pass", "mine.py:Mine"),
        ("mine.py:Yours", "from gem_core import Env\nclass Mine(Env): pass", "mine.py:Mine"),
        ("mine.py:Mine", "\n1 / 0", "ZeroDivisionError: division by zero, line 2"),
        ("mine.py:Mine", "Mine = 3", "must be callable"),
        ("mine.py:Mine", "import nonsuch_package", "No module named 'nonsuch_package', line 1"),
    ],
)
def test_bad_file_is_reported_with_the_reason(
    name: str, text: str | None, message: str, tmp_path: Path, file: Path
) -> None:
    if text is not None:
        (tmp_path / "mine.py").write_text(text)
    with pytest.raises(GemError, match=re.escape(message)):
        make(str(tmp_path / name))
