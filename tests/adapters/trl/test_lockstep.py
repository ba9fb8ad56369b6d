"""Lockstep generation: all ranks make equal calls, even if their episodes differ in length.

vLLM's server mode, tensor parallelism and sharded weights make generation a collective call. A rank
that skips a call, or sends fewer prompts, hangs the others. Here two real processes under gloo play
episodes of different length on a mock engine that asserts equal calls.
"""

from __future__ import annotations

from gem_conformance.harness import start_ranks


def test_episodes_of_different_length_do_not_deadlock() -> None:
    one_turn_each, up_to_three = [0, 3, 6, 9], [0, 1, 2, 5]
    calls = start_ranks("trl_lockstep_rank", [one_turn_each, up_to_three], timeout=120)
    assert calls[0] == calls[1] == [4, 4, 4] * 2, (
        "three rounds of four prompts in each of two rollouts, on both ranks"
    )
