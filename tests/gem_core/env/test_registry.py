"""Registry: environments and wrappers by name, mixtures, and errors that say what to write instead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from scripted_env import ScriptedEnv, Shout

from gem_core import Env, list_envs, make, register, register_wrapper, spec
from gem_core.env.registry import canonical_wrappers, environments
from gem_core.env.wrapper_stack import parse_wrappers, wrappers
from gem_core.errors import (
    ConfigError,
    GemError,
    MissingDependencyError,
    RegistrationError,
    UnknownNameError,
)
from gem_core.wrappers.formats import Boxed, React
from gem_core.wrappers.history import Concat, ConcatChat
from gem_core.wrappers.limits import TurnLimit
from gem_envs.games.guess_the_number import GuessTheNumber

EASY, HARD = "game:GuessTheNumber-v0-easy", "game:GuessTheNumber-v0-hard"
MIXTURE = f"3*{EASY} + 1*{HARD}"


@pytest.fixture(autouse=True)
def clean_registry() -> Iterator[None]:
    known, wrapping = dict(environments.all()), dict(wrappers.all())
    yield
    for name in set(environments.all()) - set(known):
        environments.remove(name)
    for name in set(wrappers.all()) - set(wrapping):
        wrappers.remove(name)


def stack(env: Env) -> list[type[Env]]:
    """The classes of an environment, innermost first."""
    found: list[type[Env]] = [type(env)]
    while hasattr(env, "env"):
        env = env.env
        found.insert(0, type(env))
    return found


# Ids.


def test_what_is_registered_can_be_made_by_its_id() -> None:
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
def test_a_malformed_id_cannot_be_registered(id: Any) -> None:
    with pytest.raises(RegistrationError, match="namespace:Name"):
        register(id, ScriptedEnv)


@pytest.mark.parametrize(
    "id", ["test:X", "test:X-v0", "test:letter_counting", "test:GSM8K", "a_1:B2-v12-easy.hard"]
)
def test_well_formed_ids_can_be_registered(id: str) -> None:
    assert register(id, ScriptedEnv).id == id


def test_an_id_that_is_taken_names_its_owner() -> None:
    with pytest.raises(
        RegistrationError,
        match=r"registered already, by the plugin 'gem_envs'; your own code wants it too",
    ):
        register(EASY, ScriptedEnv)
    register("test:Mine-v0", ScriptedEnv)
    register("test:Mine-v0", "scripted_env:AsyncEnv", replace=True)
    assert type(make("test:Mine-v0")).__name__ == "AsyncEnv"


@pytest.mark.parametrize(
    ("id", "meant"),
    [
        ("game:GuesTheNumber-v0", "game:GuessTheNumber-v0"),
        ("game:GuessTheNumber-v0-esy", EASY),
        ("GuessTheNumber-v0-easy", EASY),
    ],
)
def test_an_unknown_id_suggests_the_nearest(id: str, meant: str) -> None:
    with pytest.raises(UnknownNameError, match=f"did you mean .*'{meant}'.*gem-rl envs") as unknown:
        make(id)
    assert isinstance(unknown.value, LookupError)


def test_a_part_of_a_name_comes_first_and_then_what_is_spelt_like_it_in_its_namespace() -> None:
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
    said = str(UnknownNameError("kind", "game:Guesst-v0", known))
    assert "'game:Guess-v0'" in said
    assert "code:" not in said
    assert "mean 'game:Guild-v0'" in str(UnknownNameError("kind", "gam:Guild-v0", known))


@pytest.mark.parametrize("id", [None, 5, ["game:X"]])
def test_an_id_that_is_no_text_is_refused(id: Any) -> None:
    with pytest.raises(ConfigError, match="an environment id is a string"):
        make(id)


def test_ids_are_listed_by_pattern() -> None:
    assert EASY in list_envs("guess")
    assert list_envs("game:GuessTheNumber-v0-*") == [EASY, HARD, "game:GuessTheNumber-v0-random"]
    assert list_envs("nothing:*") == []
    assert list_envs() == sorted(list_envs())


def test_arguments_of_the_caller_win_and_unknown_ones_are_refused() -> None:
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
    ("entry_point", "said"),
    [
        ("no_such_module:X", "cannot be imported"),
        ("scripted_env:Missing", "does not exist"),
        ("scripted_env:__doc__", "not something to call"),
    ],
)
def test_an_entry_point_that_leads_nowhere_is_named_when_it_is_made(
    entry_point: str, said: str
) -> None:
    register("test:Nowhere-v0", entry_point)
    with pytest.raises(RegistrationError, match=said):
        make("test:Nowhere-v0")


def test_a_missing_package_names_the_extra(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "needs_more.py").write_text("import package_nobody_has\nclass X: pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    register("test:More-v0", "needs_more:X", extra="search")
    with pytest.raises(
        MissingDependencyError, match=r"pip install '\.\[search\]'.*package_nobody_has"
    ) as missing:
        make("test:More-v0")
    assert isinstance(missing.value, ImportError)


@pytest.mark.parametrize("entry_point", [5, None, "module", "module:", ":name", "a b:c"])
def test_an_entry_point_that_cannot_be_one_is_refused(entry_point: Any) -> None:
    with pytest.raises(RegistrationError, match="'module:name'"):
        register("test:Bad-v0", entry_point)


def test_an_entry_point_must_return_an_environment() -> None:
    register("test:Dict-v0", dict)
    with pytest.raises(RegistrationError, match="returned dict; it must return a gem_core Env"):
        make("test:Dict-v0")


# Wrappers by name.


@pytest.mark.parametrize(
    "given",
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
def test_wrappers_are_given_in_many_forms_and_mean_the_same(given: Any) -> None:
    env = make(EASY, wrappers=given)
    assert stack(env) == [GuessTheNumber, Boxed, TurnLimit, ConcatChat]
    assert (env.window, env.env.max_turns) == (2, 3)
    assert canonical_wrappers(EASY, given) == canonical_wrappers(
        EASY, "turn_limit(max_turns=3),concat_chat(window=2)"
    )


@pytest.mark.parametrize(
    "given", [["concat"], "concat", [{"concat": None}], [("concat", None)], (Concat,)], ids=str
)
def test_a_wrapper_without_arguments(given: Any) -> None:
    assert stack(make(EASY, wrappers=given)) == [GuessTheNumber, Boxed, Concat]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a(x=1, y=(2, 3)), b", [("a", {"x": 1, "y": (2, 3)}), ("b", {})]),
        ("a(x=[1, {'k': (2,)}]),b(y='),(')", [("a", {"x": [1, {"k": (2,)}]}), ("b", {"y": "),("})]),
        (" a , , b ", [("a", {}), ("b", {})]),
        ("", []),
    ],
)
def test_a_line_of_wrappers_is_split_where_it_should_be(text: str, wanted: Any) -> None:
    assert parse_wrappers(text) == wanted


@pytest.mark.parametrize(
    "bad",
    [
        "turn_limit(3)",
        "turn_limit(max_turns=",
        "turn_limit(max_turns=open('x'))",
        "a(**b)",
        [5],
        [None],
        [{}],
    ],
)
def test_wrappers_that_cannot_be_read_are_refused(bad: Any) -> None:
    with pytest.raises(ConfigError, match=r"cannot read|is no wrapper"):
        parse_wrappers(bad)


def test_a_name_like_no_other_is_answered_with_all_of_them_where_they_are_few() -> None:
    error = UnknownNameError("kind", "zzz", ("beta", "alpha"))
    assert str(error) == "no kind is registered as 'zzz'; there are: alpha, beta."
    assert (
        str(UnknownNameError("kind", "zzz", map(str, range(100))))
        == "no kind is registered as 'zzz'."
    )


def test_a_wrapper_that_does_not_fit_is_named() -> None:
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


def test_a_format_replaces_the_environments_own() -> None:
    assert stack(make(EASY)) == [GuessTheNumber, Boxed]
    assert stack(make(EASY, wrappers=["react"])) == [GuessTheNumber, React]
    assert stack(make(EASY, wrappers=["concat", "react"])) == [GuessTheNumber, Concat, React]
    with pytest.raises(
        ConfigError, match=r"\['react', 'boxed'\] are all action formats; an environment takes one"
    ):
        make(EASY, wrappers=["react", "boxed"])


def test_a_wrapper_of_ones_own_goes_by_its_name() -> None:
    register_wrapper("shout", Shout, kwargs={"mark": "?"})
    env = make("game:GuessTheNumber-v0-easy", wrappers=["shout"])
    env.reset(seed=1)
    assert env.mark == "?"
    assert make(EASY, wrappers=["shout(mark='!!')"]).mark == "!!"
    for name in ("Shout", "a b", "", "shout()"):
        with pytest.raises(RegistrationError, match="is no wrapper name"):
            register_wrapper(name, Shout)
    with pytest.raises(RegistrationError, match="registered already"):
        register_wrapper("boxed", Shout)


# Mixtures.


def test_a_mixture_plays_its_parts_by_weight() -> None:
    env = make(MIXTURE)
    chosen = Counter(env.reset(seed=seed)[1]["env_id"] for seed in range(400))
    assert set(chosen) == {EASY, HARD}
    assert 0.68 < chosen[EASY] / 400 < 0.82


def test_a_mixture_is_determined_by_the_seed_and_leaves_its_parts_alone() -> None:
    one, other = make(MIXTURE), make(MIXTURE)
    for seed in (5, 0, 7, 5):
        (observation, info), again = one.reset(seed=seed), other.reset(seed=seed)
        assert (observation, info) == again
        part = make(info["env_id"])
        assert part.reset(seed=seed)[0] == observation
        assert part.secret == one.secret


def test_a_mixture_takes_wrappers_for_all_its_parts() -> None:
    env = make(MIXTURE, wrappers=["react", "concat"])
    for seed in range(4):
        env.reset(seed=seed)
        assert stack(env.env) == [GuessTheNumber, React, Concat]
    assert env.sample_action().startswith("Thought")


def test_what_is_known_of_a_mixture() -> None:
    known = spec(f"2 * {EASY}+{HARD}")
    assert (known.id, known.turns, known.deterministic) == (f"2*{EASY} + 1*{HARD}", 7, True)
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
def test_a_mixture_that_means_nothing_is_refused(id: str) -> None:
    with pytest.raises(ConfigError, match="weight"):
        make(id)


def test_an_unknown_part_of_a_mixture_suggests_the_nearest() -> None:
    with pytest.raises(GemError, match=f"did you mean .*'{EASY}'"):
        make("game:GuessTheNumber-v0-esy + game:GuessTheNumber-v0-hard")
    with pytest.raises(ConfigError, match="does not take 'max_turns'"):
        make(MIXTURE, max_turns=3)


def test_closing_a_mixture_closes_all_parts() -> None:
    log: list[str] = []
    register("test:A-v0", lambda: ScriptedEnv(log=log))
    register("test:B-v0", lambda: ScriptedEnv(log=log))
    make("test:A-v0 + test:B-v0").close()
    assert log.count("close") == 2
