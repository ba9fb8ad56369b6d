"""FromGymnasium and ToGymnasium convert environments between gem's and Gymnasium's API."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import pytest
from scripted_env import AsyncEnv, ScriptedEnv

import gem_core
from gem_check.checker import find_problems
from gem_core import Env, FromGymnasium, check_env, make, run_episode
from gem_core.env.wrapper import Wrapper
from gem_core.errors import ConfigError, ContractError, OptionError, ResetNeededError
from gem_core.policies.players import RandomPlayer

GUESS = "game:GuessTheNumber-v0-easy"


class Words:
    """A text environment with Gymnasium's API, written without gymnasium: repeat the word."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        self.random, self.turn, self.seed = random.Random(seed), 0, seed
        self.word = (options or {}).get("word") or self.random.choice(("red", "green", "blue"))
        return f"say {self.word}", {"seed": seed}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.turn += 1
        right = action == self.word
        return f"turn {self.turn}", float(right), right, self.turn == 4, {"success": right}


class Discrete:
    """The part of `gymnasium.spaces.Discrete` that FromGymnasium uses."""

    def __init__(self, n: int) -> None:
        self.n, self.start, self.dtype = n, 0, None
        self.seed(0)

    def seed(self, seed: int) -> None:
        self.random = random.Random(seed)

    def sample(self) -> int:
        return self.random.randrange(self.n)

    def contains(self, x: Any) -> bool:
        return isinstance(x, int) and 0 <= x < self.n

    def __repr__(self) -> str:
        return f"Discrete({self.n})"


class Corridor:
    """A numeric environment: 0 moves left, 1 moves right, 5 is the goal."""

    def __init__(self) -> None:
        self.action_space = Discrete(2)
        self.closed = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        self.place, self.turn = random.Random(seed).randrange(5), 0
        return self.place, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        assert action in (0, 1), "the action space is Discrete(2)"
        self.place, self.turn = max(0, self.place + 2 * action - 1), self.turn + 1
        return self.place, float(self.place == 5), self.place == 5, self.turn >= 9, {}

    def close(self) -> None:
        self.closed += 1


def corridor() -> FromGymnasium:
    return FromGymnasium(Corridor, to_text=str)


# FromGymnasium, without gymnasium.


def test_text_environment_needs_no_conversion() -> None:
    env = FromGymnasium(Words())
    observation, info = env.reset(seed=7)
    assert info == {"seed": 7}
    assert env.step("what?") == ("turn 1", 0.0, False, False, {"success": False})
    assert env.step(observation.removeprefix("say "))[1:3] == (1.0, True)
    with pytest.raises(ResetNeededError):
        env.step("again")
    assert repr(env) == "<FromGymnasium<Words>>"
    env.close()  # the inner environment has no close()


def test_seed_is_passed_to_the_inner_environment_unchanged() -> None:
    env = FromGymnasium(Words())
    env.reset(seed=2**40)
    assert env.inner.seed == 2**40


def test_from_gymnasium_passes_check_env() -> None:
    check_env(FromGymnasium(Words))
    check_env(corridor())


def test_registered_gymnasium_environment_plays_an_episode() -> None:
    gem_core.register("test_gymnasium:Corridor-v0", corridor)
    try:
        episode = run_episode("test_gymnasium:Corridor-v0", RandomPlayer(), seed=3)
        env = make("test_gymnasium:Corridor-v0")
        assert repr(env) == "<FromGymnasium<test_gymnasium:Corridor-v0>>"
    finally:
        gem_core.env.registry.environments.remove("test_gymnasium:Corridor-v0")
    assert episode.failure is None
    assert 1 <= len(episode.turns) <= 9


def test_discrete_space_takes_numbers_as_actions() -> None:
    env = corridor()
    assert env.action_example == "0"
    start = int(env.reset(seed=1)[0])
    assert env.step(" 1 ")[0] == str(start + 1)
    assert {env.sample_action() for _ in range(50)} == {"0", "1"}


@pytest.mark.parametrize("action", ["left", "2", "-1", "", "9" * 5000])
def test_invalid_action_ends_the_episode(action: str) -> None:
    env = corridor()
    env.reset(seed=1)
    observation, reward, terminated, truncated, info = env.step(action)
    assert "is not an action" in observation and len(observation) < 250
    assert (reward, terminated, truncated) == (0.0, True, False)
    assert info == {"success": False, "format_error": True}


def test_to_action_converts_actions_and_may_raise_key_error() -> None:
    env = FromGymnasium(
        Corridor, to_text=str, to_action={"left": 0, "right": 1}.__getitem__, action_example="left"
    )
    start = int(env.reset(seed=1)[0])
    assert env.step("right")[0] == str(start + 1)
    assert env.step("up")[4] == {"success": False, "format_error": True}
    assert not env.plays_at_random  # the action space samples 0 and 1, not "left" and "right"
    with pytest.raises(NotImplementedError, match="Corridor has no action space"):
        env.sample_action()
    check_env(env)


def test_non_text_observation_raises_an_error_naming_to_text() -> None:
    with pytest.raises(ContractError, match=r"Corridor returned the observation \d, .*to_text="):
        FromGymnasium(Corridor).reset(seed=1)
    with pytest.raises(ContractError, match=r"to_text\(\) returned None"):
        FromGymnasium(Corridor, to_text=lambda observation: None).reset(seed=1)  # type: ignore[arg-type, return-value]


def test_declared_options_reach_the_inner_environment() -> None:
    env = FromGymnasium(Words, option_names=["word"])
    assert env.reset(seed=1, options={"word": "gold"})[0] == "say gold"
    assert Wrapper(env).reset(seed=1, options={"word": "gold"})[0] == "say gold"
    with pytest.raises(OptionError, match="'colour'.*it takes: word"):
        env.reset(seed=1, options={"colour": 1})


def test_spawn_requires_a_function_or_class() -> None:
    env = FromGymnasium(Words)
    other = env.spawn()
    assert isinstance(other, FromGymnasium)
    assert other.inner is not env.inner
    with pytest.raises(ConfigError, match="pass a function that creates it"):
        FromGymnasium(Words()).spawn()
    (problem,) = find_problems(FromGymnasium(Words()))
    assert problem.check == "making"


def test_close_closes_the_inner_environment_once() -> None:
    env = corridor()
    env.close()
    env.close()
    assert env.inner.closed == 1


@pytest.mark.parametrize("env", [3, "CartPole-v1", lambda: None])
def test_from_gymnasium_rejects_a_non_environment(env: Any) -> None:
    with pytest.raises(ConfigError, match=r"takes an environment with reset\(\) and step\(\)"):
        FromGymnasium(env)


def test_environment_with_the_older_gym_api_raises_a_contract_error() -> None:
    class Old:
        def reset(self, **_: Any) -> str:
            return "start"

        def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
            return "next", 1.0, False, {}

    env = FromGymnasium(Old())
    with pytest.raises(ContractError, match=r"Old.reset\(\) returned 'start', expected .*shimmy"):
        env.reset(seed=1)
    Old.reset = lambda self, **_: ("start", {})  # type: ignore[method-assign, assignment, return-value]
    env.reset(seed=1)
    with pytest.raises(ContractError, match=r"Old.step\(\) returned .*terminated, truncated"):
        env.step("x")


# With the real gymnasium.


@pytest.fixture
def gymnasium() -> Any:
    import gymnasium

    return gymnasium


def test_to_gymnasium_passes_gymnasiums_own_checker(gymnasium: Any, registered: str) -> None:
    """pytest turns the checker's warnings into errors."""
    from gymnasium.utils.env_checker import check_env as check_gymnasium_env

    check_gymnasium_env(gem_core.ToGymnasium(make(GUESS)), skip_render_check=True)
    with gem_core.ToGymnasium(AsyncEnv()) as env:
        check_gymnasium_env(env, skip_render_check=True)
    check_gymnasium_env(gymnasium.make(registered).unwrapped)


def test_round_trip_plays_the_same_episode(gymnasium: Any) -> None:
    direct, round_trip = make(GUESS), FromGymnasium(gem_core.ToGymnasium(make(GUESS)))
    for seed in (0, 5, 2**40):
        assert round_trip.reset(seed=seed) == direct.reset(seed=seed)
        while not direct.ended:
            action = direct.sample_action()
            assert round_trip.step(action) == direct.step(action)
        assert round_trip.ended
    check_env(FromGymnasium(lambda: gem_core.ToGymnasium(make(GUESS))))


@pytest.fixture
def registered(gymnasium: Any) -> Iterator[str]:
    gymnasium.register("GemGuess-v0", lambda **kwargs: gem_core.ToGymnasium(make(GUESS), **kwargs))
    yield "GemGuess-v0"
    gymnasium.registry.pop("GemGuess-v0")


def test_gymnasium_makes_wraps_and_renders_a_gem_environment(
    gymnasium: Any, registered: str
) -> None:
    env = gymnasium.wrappers.RecordEpisodeStatistics(
        gymnasium.make(registered, render_mode="ansi", max_episode_steps=2)
    )
    observation, _ = env.reset(seed=3)
    assert env.render() == observation
    assert observation == make(GUESS).reset(seed=3)[0]
    for _ in range(2):
        observation, _, terminated, truncated, info = env.step(r"\boxed{0}")
        if terminated or truncated:
            break
    assert env.render() == observation
    assert "episode" in info
    env.close()


def test_gymnasium_vectorizes_gem_environments(gymnasium: Any, registered: str) -> None:
    vector = gymnasium.make_vec(registered, num_envs=3, vectorization_mode="sync")
    observations, _ = vector.reset(seed=[4, 5, 6])
    assert list(observations) == [make(GUESS).reset(seed=seed)[0] for seed in (4, 5, 6)]
    actions = vector.action_space.sample()
    assert len(actions) == 3
    _, rewards, *_ = vector.step(actions)
    assert len(rewards) == 3
    vector.close()


def test_reset_without_a_seed_derives_one_from_the_last_seed(gymnasium: Any) -> None:
    def next_seeds(seed: int) -> list[int]:
        env = gem_core.ToGymnasium(make(GUESS))
        env.reset(seed=seed)
        seeds = []
        for _ in range(3):
            env.reset()
            seeds.append(env.env.unwrapped.seed)
        return seeds

    assert next_seeds(1) == next_seeds(1) != next_seeds(2)
    assert len(set(next_seeds(1))) == 3


def test_action_space_samples_legal_actions_with_its_own_seed(gymnasium: Any) -> None:
    env = gem_core.ToGymnasium(make("game:TowerofHanoi-v0-easy"))
    env.reset(seed=1)

    def sampled(seed: int) -> list[str]:
        env.action_space.seed(seed)
        return [env.action_space.sample() for _ in range(10)]

    assert sampled(1) == sampled(1) != sampled(2)
    for _ in range(20):
        *_, terminated, truncated, info = env.step(env.action_space.sample())
        assert "format_error" not in info
        if terminated or truncated:
            break
    assert env.observation_space.contains(env.observation_space.sample())
    assert not env.action_space.contains(3)


def test_to_gymnasium_runs_an_async_environment(gymnasium: Any) -> None:
    env = gem_core.ToGymnasium(AsyncEnv())
    assert env.reset(seed=1) == ("T", {})
    assert env.step("x") == ("O1", 1.0, False, False, {})
    env.close()
    assert env.env.log[-1] == "close"
    assert asyncio.run(asyncio.sleep(0, "another loop works afterwards"))


def test_to_gymnasium_repr_shows_the_wrapper_stack(gymnasium: Any) -> None:
    env = gem_core.ToGymnasium(make(GUESS))
    assert repr(env) == f"<ToGymnasium<Boxed<GuessTheNumber<{GUESS}>>>>"
    assert str(gem_core.ToGymnasium(ScriptedEnv())) == "<ToGymnasium<ScriptedEnv>>"


def test_to_gymnasium_rejects_wrong_arguments(gymnasium: Any) -> None:
    with pytest.raises(ConfigError, match="takes a gem_core Env, got str"):
        gem_core.ToGymnasium(GUESS)
    with pytest.raises(ConfigError, match="render_mode must be 'ansi' or None, got 'human'"):
        gem_core.ToGymnasium(make(GUESS), render_mode="human")


def test_from_gymnasium_plays_real_gymnasium_environments(gymnasium: Any) -> None:
    env: Env = FromGymnasium(
        lambda: gymnasium.make("CartPole-v1"), to_text=lambda observation: f"{observation.round(3)}"
    )
    check_env(env)
    with pytest.raises(ConfigError, match=r"the action space Box.*to_action="):
        FromGymnasium(gymnasium.make("Pendulum-v1"), to_text=str)
