"""GuessTheNumber: parameters, feedback, rewards and rejected actions."""

from __future__ import annotations

import math
import re
import time
from typing import Any

import pytest

from gem_core import make
from gem_core.errors import ConfigError, ResetNeededError
from gem_envs.games.guess_the_number import GuessTheNumber


def game(**parameters: Any) -> GuessTheNumber:
    env = GuessTheNumber(**parameters)
    env.reset(seed=1)
    return env


@pytest.mark.parametrize(
    ("id", "low", "high", "turns"), [("", 1, 10, 4), ("-easy", 1, 10, 4), ("-hard", 1, 50, 7)]
)
def test_id_sets_the_range_and_the_turns(id: str, low: int, high: int, turns: int) -> None:
    env = make(f"game:GuessTheNumber-v0{id}")
    observation, _ = env.reset(seed=1)
    assert f"between {low} and {high}" in observation
    assert f"{turns} guesses" in observation
    assert (env.min_number, env.max_number, env.max_turns, env.spec.turns) == (
        low,
        high,
        turns,
        turns,
    )


def test_every_number_in_the_range_can_be_the_secret() -> None:
    env = GuessTheNumber(1, 10)
    secrets = set()
    for seed in range(200):
        env.reset(seed=seed)
        secrets.add(env.secret)
    assert secrets == set(range(1, 11))


def test_random_variant_draws_its_range() -> None:
    env = make("game:GuessTheNumber-v0-random")
    ranges = set()
    for seed in range(100):
        env.reset(seed=seed)
        low, high = env.min_number, env.max_number
        assert 1 <= low <= 10
        assert low + 5 <= high <= low + 50
        assert low <= env.secret <= high
        assert env.max_turns == math.ceil(math.sqrt(high - low)) + 1
        ranges.add((low, high))
    assert len(ranges) > 50
    first = env.reset(seed=1)
    env.reset(seed=2)
    assert env.reset(seed=1) == first


def test_bisection_by_hints_finds_fifty_numbers_in_seven_guesses() -> None:
    env = make("game:GuessTheNumber-v0-hard")
    for seed in range(50):
        env.reset(seed=seed)
        low, high, rewards = 1, 50, 0.0
        while not env.ended:
            guess = (low + high) // 2
            observation, reward, _, _, info = env.step(f"\\boxed{{{guess}}}")
            low, high = (guess + 1, high) if "higher" in observation else (low, guess - 1)
            rewards += reward
        assert (rewards, info["success"]) == (1.0, True)


def test_wrong_guesses_return_hints_and_the_last_turn_truncates() -> None:
    env = game(min_number=1, max_number=11, max_turns=4)
    env.secret = 6
    assert env.step("3") == ("My number is higher than 3.", 0.0, False, False, {})
    assert env.step("9") == ("My number is lower than 9.", 0.0, False, False, {})
    assert env.step("12") == ("12 is not between 1 and 11.", 0.0, False, False, {})
    observation, reward, terminated, truncated, info = env.step("7")
    assert observation == "My number is lower than 7.\nThat was the last of 4 turns."
    assert (reward, terminated, truncated, info) == (0.0, False, True, {"success": False})
    with pytest.raises(ResetNeededError):
        env.step("6")


@pytest.mark.parametrize("turn", [1, 4])
def test_correct_guess_wins_at_any_turn(turn: int) -> None:
    env = game(max_turns=4)
    for _ in range(turn - 1):
        env.step("99")
    assert env.step(f" {env.secret}\n") == (
        f"Yes, my number is {env.secret}.",
        1.0,
        True,
        False,
        {"success": True},
    )


def test_near_miss_pays_nothing() -> None:
    """The reference pays 0.98 for a last guess that is off by one."""
    for guess in range(60):
        env = game(min_number=1, max_number=50, max_turns=1)
        assert env.step(str(guess))[1] == (1.0 if guess == env.secret else 0.0)


@pytest.mark.parametrize(
    "action",
    [
        "",
        "five",
        "5.0",
        "5 6",
        "٥",
        "⁵",
        "５",
        "1e1",
        "0x5",
        "5_0",
        "--5",
        "-",
        "+5",
        "9" * 30,
        "nan",
        "\x005",
    ],
)
def test_non_integer_ends_the_game_as_a_format_error(action: str) -> None:
    observation, reward, terminated, truncated, info = game().step(action)
    assert "is not a whole number" in observation
    assert (reward, terminated, truncated, info) == (
        -0.1,
        True,
        False,
        {"success": False, "format_error": True},
    )


@pytest.mark.parametrize("action", ["-5", "0", "11", "9" * 19, "  3  ", "03"])
def test_wrong_number_only_costs_the_turn(action: str) -> None:
    env = game()
    env.secret = 7
    assert env.step(action)[1:4] == (0.0, False, False)


@pytest.mark.parametrize(
    "action",
    ["x" * 1_000_000, "9" * 1_000_000, " " * 1_000_000, "\\boxed{" + "9" * 1_000_000 + "}"],
)
def test_megabyte_action_gets_a_short_and_fast_answer(action: str) -> None:
    for env in (game(), make("game:GuessTheNumber-v0-easy")):
        env.reset(seed=1)
        began = time.process_time()
        observation = env.step(action)[0]
        assert time.process_time() - began < 0.5
        assert len(observation) < 300


@pytest.mark.parametrize("wrappers", [(), ("react",), ("tool_call",), ("code",)], ids=str)
def test_prompt_does_not_depend_on_the_secret(wrappers: Any) -> None:
    """An example in the instructions that equals the number would be a hint."""
    env = make("game:GuessTheNumber-v0-easy", wrappers=wrappers)
    prompts = set()
    for seed in range(30):
        observation, info = env.reset(seed=seed)
        prompt = observation + info.get("system", "")
        prompts.add(prompt)
        assert re.findall(r"\d+", prompt) == ["1", "10", "4"]
    assert len(prompts) == 1


@pytest.mark.parametrize(
    "parameters",
    [
        {"min_number": 5, "max_number": 5},
        {"min_number": 9, "max_number": 3},
        {"min_number": -1},
        {"max_number": 2.5},
        {"max_number": "10"},
        {"max_turns": 0},
        {"max_turns": True},
    ],
    ids=str,
)
def test_invalid_parameters_raise_config_error(parameters: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="must be"):
        GuessTheNumber(**parameters)


def test_sampled_guess_is_boxed_and_in_range() -> None:
    env = make("game:GuessTheNumber-v0-random")
    for seed in range(20):
        env.reset(seed=seed)
        guess = env.sample_action()
        assert env.min_number <= int(re.fullmatch(r"\\boxed\{(\d+)\}", guess)[1]) <= env.max_number  # type: ignore[index]
