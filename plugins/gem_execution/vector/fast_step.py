"""Fast path for the most common stack: an action format around a plain environment.

A wrapper's step runs a generator, checks the result twice and looks up attributes on a class with
`__getattr__`, which is slow in CPython. This cost is negligible next to an LLM call, but more than
half of the time of a vector of small games. Only the thresholds "sync vector" and "async vector" of
`benchmarks/throughput.py` need this module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

from gem_core.env.action_format import ActionFormat, with_instruction
from gem_core.env.base import Env, ResetResult, StepResult
from gem_core.env.maybe_async import after
from gem_core.env.wrapper import Wrapper

__all__ = ["Reset", "Step", "fast_calls"]

Reset = Callable[..., ResetResult]
Step = Callable[[str], StepResult]


def fast_calls(env: Env) -> tuple[Reset, Step]:
    """Return `env.reset` and `env.step`, or equivalent fast versions if no class overrides them.

    A vector calls this once, after it has chosen the thread of the environment.
    """
    if not (
        isinstance(env, ActionFormat)
        and type(env).on_step is ActionFormat.on_step
        and type(env).on_reset is ActionFormat.on_reset
        and not isinstance(env.env, Wrapper)
        and not env.is_async
    ):
        return env.reset, env.step
    outer, inner, place = vars(env), env.env, env.place
    parse, instruction = env.parse, env.instruction
    on_reset, on_step = inner.on_reset, inner.on_step

    def reset(*, seed: int, options: Mapping[str, Any] | None) -> ResetResult:
        if options or type(seed) is not int or seed < 0:
            return env.reset(seed=seed, options=options)
        outer["_phase"], outer["_closed"], outer["_seed"] = "new", False, seed
        outer["_turn"], outer["_errors"] = 0, 0
        outer["_rng_seeded"], outer["_action_rng"] = False, None
        inner._phase, inner._closed, inner._seed, inner._turn = "new", False, seed, 0
        inner._rng_seeded, inner._action_rng = False, None
        result: Any = on_reset({})
        if (
            type(result) is tuple
            and len(result) == 2
            and type(result[0]) is str
            and type(result[1]) is dict
        ):
            inner._phase = "running"
            return start(result)
        # a generator, an awaitable, or an error
        return cast(ResetResult, after(inner._finish_reset(result), start))

    def start(result: ResetResult) -> ResetResult:
        outer["_phase"], outer["_suffix"] = "running", result[1].get("suffix", "")
        return with_instruction(instruction(), place, result)

    def step(action: str) -> StepResult:
        if (
            inner._phase != "running"
            or outer["_phase"] != "running"
            or (parsed := parse(action)) is None
            or not parsed.strip()
        ):
            return env.step(action)
        result = on_step(parsed)
        if type(result) is tuple and len(result) == 5:
            observation, reward, terminated, truncated, info = result
            if (
                type(observation) is str
                and type(reward) is float
                and reward - reward == 0.0  # finite
                and (terminated is False or terminated is True)
                and (truncated is False or truncated is True)
                and type(info) is dict
            ):
                inner._turn += 1
                outer["_turn"] += 1
                outer["_suffix"] = info.get("suffix", "")
                if terminated or truncated:
                    inner._phase = outer["_phase"] = "ended"
                if not info:
                    info = {"parsed_action": parsed}
                elif "parsed_action" not in info:
                    info = {**info, "parsed_action": parsed}
                return observation, reward, terminated, truncated, info
        # a generator, an awaitable, values that can be converted, or an error
        return cast(StepResult, after(inner._finish_step(result), partial(check_outer, parsed)))

    def check_outer(parsed: str, checked: StepResult) -> StepResult:
        outer["_suffix"] = checked[4].get("suffix", "")
        info = {**checked[4], "parsed_action": checked[4].get("parsed_action", parsed)}
        return env._check_step((*checked[:4], info))

    return reset, step
