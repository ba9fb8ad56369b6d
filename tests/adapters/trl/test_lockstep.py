"""Lockstep generation: equal calls and equal sizes on every rank, however ragged the episodes are.

vLLM's server mode, tensor parallelism and sharded weights make generation a collective call; a rank that skips one, or
brings fewer prompts, hangs the others. Two real processes under gloo play ragged episodes against a mock engine that asserts
just that, and would hang if the protocol were broken.
"""

from __future__ import annotations

from gem_core.adapter_kit.conformance.harness import start_ranks


def test_ragged_turns_do_not_deadlock() -> None:
    one_turn_each, up_to_three = [0, 3, 6, 9], [0, 1, 2, 5]
    calls = start_ranks("trl_lockstep_rank", [one_turn_each, up_to_three], timeout=120)
    assert calls[0] == calls[1] == [4, 4, 4] * 2, (
        "three rounds of four prompts in each of two rollouts, on both ranks"
    )
