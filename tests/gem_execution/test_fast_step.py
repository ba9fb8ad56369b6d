"""The fast path through an action format gives the same results as `reset` and `step`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from scripted_env import AsyncEnv, ScriptedEnv, counts

from gem_core import GemError, OptionError, ResetNeededError, make
from gem_core.wrappers.formats import Boxed
from gem_execution.vector.fast_step import fast_calls


class Five(NamedTuple):
    observation: str
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]


@pytest.mark.parametrize("on_error", ["end", "again", "pass"])
@pytest.mark.parametrize(
    "actions",
    [
        r"\boxed{a} \boxed{b} \boxed{c} \boxed{d}",
        r"\boxed{a} b \boxed{c}",
        r"\boxed{a} \boxed{} \boxed{c}",
    ],
)
@pytest.mark.parametrize(
    "answer",
    [
        counts,
        lambda env, action: ("x", 0.5, False, True, {"parsed_action": "another"}),
        lambda env, action: ("x", 0.5, False, False, {"suffix": action}),
        lambda env, action: ("x", 1, False, False, {"suffix": action}),
        lambda env, action: ("x", 1, 1, 0, {}),
        lambda env, action: Five("x", 1.0, False, False, {"n": env.turn}),
        lambda env, action: ("x", 1.0, False, {}),
        lambda env, action: ["x", 1.0, False, False, {}],
        lambda env, action: ("x", "1", False, False, {}),
        lambda env, action: ("x", float("nan"), False, False, {}),
        lambda env, action: ("x", 1.0, "no", False, {}),
        lambda env, action: (b"x", 1.0, False, False, {}),
        lambda env, action: ("x", 1.0, False, False, None),
        lambda env, action: None,
        lambda env, action: 1 / env.turn,
    ],
)
def test_fast_path_gives_the_same_results(actions: str, answer: Any, on_error: Any) -> None:
    def results(fast: bool) -> Iterator[Any]:
        env = Boxed(ScriptedEnv(answer), on_error=on_error)
        reset, step = fast_calls(env) if fast else (env.reset, env.step)
        assert (getattr(step, "__self__", None) is not env) == fast
        for seed, options in ((7, None), (8, {}), (9, {"start": "S"})):
            yield reset(seed=seed, options=options)
            for action in actions.split():
                try:
                    yield step(action)
                except (ArithmeticError, GemError) as error:
                    yield type(error), str(error)
                yield [(e.ended, e.seed, e.turn, e.rng.random()) for e in (env, env.env)]

    assert list(results(True)) == list(results(False))


def test_fast_path_raises_the_same_errors() -> None:
    reset, step = fast_calls(Boxed(ScriptedEnv()))
    with pytest.raises(ResetNeededError, match="before reset"):
        step(r"\boxed{a}")
    with pytest.raises(OptionError, match=">= 0"):
        reset(seed=-1, options=None)
    env = Boxed(ScriptedEnv())
    reset, step = fast_calls(env)
    reset(seed=1, options=None)
    env.env._phase = "ended"  # as if the inner environment had been stepped directly
    with pytest.raises(ResetNeededError, match="ScriptedEnv after its episode ended"):
        step(r"\boxed{a}")


def test_other_stacks_do_not_use_the_fast_path() -> None:
    class Custom(Boxed):
        def on_step(self, action: str) -> Any:
            return (yield self.env.step(action))

    for env in (
        Custom(ScriptedEnv()),
        Boxed(AsyncEnv()),
        ScriptedEnv(),
        make("game:Wordle-v0-easy", wrappers="boxed,concat"),
    ):
        assert fast_calls(env) == (env.reset, env.step)


def test_fast_path_supports_generator_steps() -> None:
    class GeneratorEnv(ScriptedEnv):
        def on_step(self, action: str) -> Any:
            yield 1  # the driver sends back values that are not awaitable
            return "O", 1.0, True, False, {}

    env = Boxed(GeneratorEnv())
    reset, step = fast_calls(env)
    reset(seed=1, options=None)
    assert step(r"\boxed{a}") == ("O", 1.0, True, False, {"parsed_action": "a"})
    assert env.ended
    assert env.turn == env.env.turn == 1
