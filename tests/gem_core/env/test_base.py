"""Tests of `Env` and `Wrapper`: the contract of `reset` and `step`, sync and async."""

from __future__ import annotations

import asyncio
import copy
import pickle
import random
from collections.abc import Callable
from inspect import isawaitable
from typing import Any

import pytest
from scripted_env import AsyncEnv, ScriptedEnv, Shout

from gem_core import Env, Wrapper, list_envs, make
from gem_core.errors import (
    ActionTypeError,
    ConfigError,
    ContractError,
    OptionError,
    ResetNeededError,
)

KINDS: dict[str, Callable[..., Env]] = {
    "sync": ScriptedEnv,
    "async": AsyncEnv,
    "sync, wrapped": lambda *a, **k: Shout(ScriptedEnv(*a, **k)),
    "async, wrapped": lambda *a, **k: Shout(AsyncEnv(*a, **k)),
}


def result_of(value: Any) -> Any:
    """Return a value, or the result of an awaitable."""
    if not isawaitable(value):
        return value

    async def wait() -> Any:
        return await value

    return asyncio.run(wait())


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Callable[..., Env]:
    return KINDS[request.param]


def test_episode_runs_from_reset_to_the_end(kind: Callable[..., Env]) -> None:
    env = kind()
    observation, info = result_of(env.reset(seed=5))
    assert (observation, info, env.seed, env.turn, env.ended) == ("T", {}, 5, 0, False)
    for n in (1, 2, 3):
        observation, reward, terminated, truncated, info = result_of(env.step("x"))
        assert observation.startswith(f"O{n}")
        assert (reward, terminated, truncated) == (float(n), n == 3, False)
        assert (env.turn, env.ended) == (n, n == 3)
    result_of(env.reset(seed=6))
    assert (env.seed, env.turn, env.ended) == (6, 0, False)


def test_wrapper_is_async_only_around_an_async_env() -> None:
    assert isinstance(Shout(ScriptedEnv()).reset(seed=1), tuple)
    assert not Shout(ScriptedEnv()).is_async
    assert Shout(AsyncEnv()).is_async


def test_step_before_reset_raises(kind: Callable[..., Env]) -> None:
    with pytest.raises(ResetNeededError, match=r"before reset\(\)"):
        result_of(kind().step("x"))


def test_step_after_the_end_raises_and_changes_nothing(kind: Callable[..., Env]) -> None:
    log: list[str] = []
    env = kind(log=log)
    result_of(env.reset(seed=1))
    for _ in range(3):
        result_of(env.step("x"))
    before = list(log)
    with pytest.raises(ResetNeededError, match="after its episode ended at turn 3"):
        result_of(env.step("x"))
    assert log == before


@pytest.mark.parametrize("action", [5, None, b"x", ["x"], {"action": "x"}])
def test_non_string_action_raises_and_changes_nothing(
    kind: Callable[..., Env], action: Any
) -> None:
    log: list[str] = []
    env = kind(log=log)
    result_of(env.reset(seed=1))
    with pytest.raises(ActionTypeError, match=type(action).__name__) as raised:
        result_of(env.step(action))
    assert isinstance(raised.value, TypeError)
    assert (env.turn, log) == (0, ["make", "reset"])
    assert result_of(env.step("x"))[0].startswith("O1")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"options": {"colour": 1}}, "'colour'.*it takes: start"),
        ({"options": ["start"]}, "mapping"),
        ({"seed": -1}, ">= 0.*got -1"),
        ({"seed": True}, "bool"),
        ({"seed": 1.5}, "float"),
        ({"seed": "1"}, "str"),
    ],
    ids=str,
)
def test_invalid_reset_raises_and_changes_nothing(
    kind: Callable[..., Env], arguments: Any, message: str
) -> None:
    env = kind()
    result_of(env.reset(seed=4, options={"start": "S"}))
    result_of(env.step("x"))
    with pytest.raises(OptionError, match=message):
        result_of(env.reset(**arguments))
    assert (env.seed, env.turn) == (4, 1)
    assert result_of(env.step("x"))[0].startswith("O2")


def test_async_reset_makes_an_environment_async() -> None:
    class AsyncReset(ScriptedEnv):
        on_reset = AsyncEnv.on_reset

    assert AsyncReset().is_async and not ScriptedEnv().is_async


def test_options_reach_the_environment(kind: Callable[..., Env]) -> None:
    assert result_of(kind().reset(seed=1, options={"start": "S"}))[0] == "S"


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (None, "must return"),
        (("O", 1.0, False, {}), "must return"),
        ((None, 1.0, False, False, {}), "None"),
        (("O", None, False, False, {}), "must be a number"),
        (("O", "1", False, False, {}), "must be a number"),
        (("O", float("inf"), False, False, {}), "inf"),
        (("O", 10**400, False, False, {}), "must be a number"),
        (("O", 1.0, "yes", False, {}), "must be a bool"),
        (("O", 1.0, False, None, {}), "must be a bool"),
        (("O", 1.0, False, False, None), "info None"),
    ],
    ids=str,
)
def test_step_rejects_an_invalid_result(
    kind: Callable[..., Env], result: Any, message: str
) -> None:
    env = kind(lambda env, action: result)
    result_of(env.reset(seed=1))
    with pytest.raises(ContractError, match=message):
        result_of(env.step("x"))
    assert env.turn == 0


@pytest.mark.parametrize("result", [None, "T", ("T",), ("T", None), (b"T", {})], ids=str)
def test_reset_rejects_an_invalid_result(result: Any) -> None:
    class Bad(ScriptedEnv):
        def on_reset(self, options: Any) -> Any:
            return result

    with pytest.raises(ContractError, match=r"must return \(str, dict\)"):
        Bad().reset(seed=1)


def test_step_converts_rewards_and_flags_to_python_types() -> None:
    class Scalar:
        """A number like the scalars of numpy and torch."""

        def __float__(self) -> float:
            return 0.5

    for reward, expected in ((1, 1.0), (True, 1.0), (Scalar(), 0.5)):
        env = ScriptedEnv(lambda env, action, reward=reward: ("O", reward, 1, 0, {}))  # type: ignore[misc]
        env.reset(seed=1)
        result = env.step("x")
        assert result == ("O", expected, True, False, {})
        assert [type(part) for part in result[1:4]] == [float, bool, bool]
        assert env.ended


def test_randomness_depends_only_on_the_seed() -> None:
    """No global generator is used, and sampling an action does not change the episode."""
    random.seed(0)
    before = random.getstate()
    env = ScriptedEnv()
    env.reset(seed=3)
    chance, first = env.chance, [env.sample_action() for _ in range(20)]
    random.seed(1)
    env.reset(seed=3)
    assert (env.chance, [env.sample_action() for _ in range(20)]) == (chance, first)
    env.reset(seed=3)
    env.sample_action()
    fresh = ScriptedEnv()
    fresh.reset(seed=3)
    assert env.rng.random() == fresh.rng.random()
    random.setstate(before)
    env.reset()
    env.sample_action()
    assert random.getstate() == before


def test_reset_without_a_seed_draws_one() -> None:
    env = ScriptedEnv()
    seeds = set()
    for _ in range(5):
        env.reset()
        seeds.add(env.seed)
    assert len(seeds) == 5


def test_seed_may_be_any_object_with_index() -> None:
    class Index:
        def __index__(self) -> int:
            return 2**70

    env = ScriptedEnv()
    env.reset(seed=Index())  # type: ignore[arg-type]
    assert env.seed == 2**70


def test_close_is_idempotent(kind: Callable[..., Env]) -> None:
    log: list[str] = []
    env = kind(log=log)
    result_of(env.close())
    result_of(env.close())
    assert log.count("close") == 1


def test_closing_again_after_a_reset_closes_the_new_episode(kind: Callable[..., Env]) -> None:
    log: list[str] = []
    env = kind(log=log)
    for _ in range(2):
        result_of(env.reset(seed=0))
        result_of(env.close())
    assert log.count("close") == 2


def test_context_manager_closes_the_env(kind: Callable[..., Env]) -> None:
    with kind() as env:
        pass
    assert env.log == ["make", "close"]  # type: ignore[attr-defined]


def test_env_without_init_rejects_arguments() -> None:
    class Bare(Env):
        pass

    with pytest.raises(TypeError, match=r"Bare\(\) takes no arguments"):
        Bare(5)
    with pytest.raises(NotImplementedError, match="Bare does not define on_reset"):
        Bare().reset(seed=1)
    with pytest.raises(NotImplementedError, match="sample_action"):
        Bare().sample_action()


@pytest.mark.parametrize("base", [Env, ScriptedEnv, Wrapper])
@pytest.mark.parametrize("name", ["reset", "step", "close"])
def test_overriding_reset_step_or_close_raises_at_class_definition(
    base: type[Env], name: str
) -> None:
    with pytest.raises(
        ContractError,
        match=rf"Mine overrides {name}\(\); define on_{name}\(\) instead.*FromGymnasium\(env\)",
    ):
        type("Mine", (base,), {name: lambda self, *args, **kwargs: None})
    type("Mine", (base,), {f"on_{name}": lambda self, *args: None})


def test_repr_shows_the_wrapper_stack() -> None:
    assert repr(ScriptedEnv()) == "<ScriptedEnv>"
    assert repr(Shout(Wrapper(ScriptedEnv()))) == "<Shout<Wrapper<ScriptedEnv>>>"
    assert repr(make("game:Wordle-v0-easy")) == "<Boxed<Wordle<game:Wordle-v0-easy>>>"
    turns = make("game:Wordle-v0-easy", wrappers=["turn_limit(max_turns=2)"])
    assert repr(turns) == "<TurnLimit<Boxed<Wordle<game:Wordle-v0-easy>>>>"


def test_spawn_creates_an_equal_independent_env() -> None:
    env = make("game:GuessTheNumber-v0-hard", wrappers=["concat(window=2)"])
    env.reset(seed=3)
    twin = env.spawn()
    assert repr(twin) == repr(env)
    assert (twin.window, twin.unwrapped.max_number) == (2, env.unwrapped.max_number)
    assert twin.reset(seed=4) != env.step(r"\boxed{1}")
    assert (env.seed, twin.seed) == (3, 4)


def test_envs_can_be_copied_and_pickled() -> None:
    env = make("game:GuessTheNumber-v0-hard", wrappers=["concat"])
    env.reset(seed=3)
    env.step(r"\boxed{25}")
    for twin in (copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
        assert twin.secret == env.secret
        assert twin.step(r"\boxed{1}") == copy.deepcopy(env).step(r"\boxed{1}")


# Wrappers.


def test_wrapper_works_for_sync_and_async_envs() -> None:
    seen = []
    for inner in (ScriptedEnv(), AsyncEnv()):
        env = Shout(inner)
        result_of(env.reset(seed=1))
        seen.append([result_of(env.step("hello")), inner.log[-1]])
    assert seen[0] == seen[1] == [("O1!", 1.0, False, False, {"shouts": 1}), "step HELLO"]


def test_wrapper_forwards_undefined_attributes() -> None:
    inner = ScriptedEnv()
    outer = Shout(Shout(inner, mark="?"))
    outer.reset(seed=1)
    inner.chance = 0.123
    assert outer.chance == 0.123
    assert outer.unwrapped is inner
    assert (outer.mark, outer.env.mark) == ("!", "?")
    assert outer.sample_action() in ("left", "right")
    assert outer.execution == "inline"
    inner.action_example = "n"
    assert outer.action_example == "n"
    with pytest.raises(AttributeError, match="colour"):
        _ = outer.colour


def test_wrapper_rejects_a_non_env() -> None:
    with pytest.raises(ConfigError, match="wraps an Env, got str"):
        Wrapper("env")  # type: ignore[arg-type]


def test_wrapper_may_skip_the_inner_call_and_catch_its_errors() -> None:
    class Careful(Wrapper):
        def on_step(self, action: str) -> Any:
            if action == "help":
                return "no help", 0.0, False, False, {}
            try:
                return (yield self.env.step(action))
            except ValueError as error:
                return f"caught {error}", 0.0, True, False, {}

    def answer(env: ScriptedEnv, action: str) -> Any:
        if action == "bad":
            raise ValueError("inner")
        return "fine", 1.0, False, False, {}

    for inner in (ScriptedEnv(answer), AsyncEnv(answer)):
        env = Careful(inner)
        result_of(env.reset(seed=1))
        observations = [result_of(env.step(action))[0] for action in ("help", "go", "bad")]
        assert observations == ["no help", "fine", "caught inner"]


def test_wrapper_methods_may_be_plain_or_async_functions() -> None:
    closed = []

    class Plain(Wrapper):
        def on_step(self, action: str) -> Any:
            return "mine", 0.0, False, False, {}

        def on_close(self) -> None:
            closed.append(1)

    class Awaiting(Wrapper):
        async def on_step(self, action: str) -> Any:
            await asyncio.sleep(0)
            return "mine", 0.0, False, False, {}

    for build in (Plain, Awaiting):
        env = build(ScriptedEnv())
        env.reset(seed=1)
        assert result_of(env.step("x"))[0] == "mine"
    Plain(ScriptedEnv()).close()
    assert closed == [1]


def test_wrapper_accepts_its_own_and_the_inner_options() -> None:
    class WithOption(Wrapper):
        option_names = frozenset({"loud"})

        def on_reset(self, options: Any) -> Any:
            loud = options.get("loud")
            observation, info = yield self.env.reset(
                seed=self.seed, options={k: v for k, v in options.items() if k != "loud"}
            )
            return observation.upper() if loud else observation, info

    env = WithOption(ScriptedEnv())
    assert env.reset(seed=1, options={"loud": True, "start": "s"})[0] == "S"
    with pytest.raises(OptionError, match="it takes: loud, start"):
        env.reset(seed=1, options={"colour": 1})


def test_run_on_offloads_blocking_code_but_not_async_code() -> None:
    offloaded = []

    async def offload(function: Any, *args: Any) -> Any:
        offloaded.append(function.__name__)
        return function(*args)

    class Mixed(ScriptedEnv):
        async def on_reset(self, options: Any) -> Any:
            return "T", {}

    async def main() -> None:
        env = Shout(Mixed(execution="thread"))
        env.run_on(offload)
        await env.reset(seed=1)  # type: ignore[misc]
        await env.step("x")  # type: ignore[misc]
        env.run_on(None)
        assert isinstance(env.step("x"), tuple)
        inline = ScriptedEnv(execution="inline")
        inline.run_on(offload)
        assert isinstance(inline.reset(seed=1), tuple)

    asyncio.run(main())
    assert offloaded == ["on_step"]


# Every registered environment.


@pytest.mark.parametrize("id", list_envs("game:"))
def test_equal_seeds_and_actions_give_equal_transcripts(id: str) -> None:
    def transcript() -> list[Any]:
        env = make(id)
        results: list[Any] = [env.reset(seed=11)]
        while not env.ended:
            results.append(env.step(env.sample_action()))
        env.close()
        return results

    assert transcript() == transcript()


@pytest.mark.parametrize("id", list_envs("game:"))
def test_sample_action_is_always_legal(id: str) -> None:
    env = make(id)
    for seed in range(3):
        env.reset(seed=seed)
        while not env.ended:
            *_, info = env.step(env.sample_action())
            assert "format_error" not in info
