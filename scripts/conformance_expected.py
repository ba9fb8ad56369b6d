"""Write plugins/gem_conformance/expected.json: what every golden case gives, computed a second way.

    python scripts/conformance_expected.py

The conformance kit compares trainers with these values. They must not come from the code that the
adapters use, so this script imports nothing from `gem_core.training`. It uses exact fractions and
sums instead of floats and recursions.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from decimal import Decimal, getcontext
from fractions import Fraction
from pathlib import Path
from typing import Any

from gem_conformance.golden import CASES, GRADIENT_CASES, ONE_RANK_FAILED, Case

from gem_core.types import Episode

OUT = Path(__file__).parent.parent / "plugins" / "gem_conformance" / "expected.json"
EPSILON = Fraction(1, 10**8)
getcontext().prec = 50


def expected(case: Case) -> list[dict[str, Any]]:
    """Return the expected values of each episode of a case."""
    returns = [_returns(episode, case.gamma) for episode in case.episodes]
    advantages = _advantages(case, returns)
    return [
        {
            "returns": [float(g) for g in of_episode],
            "advantages": [float(a) for a in per_turn],
            "sequences": _sequences(episode, per_turn),
            "turns": _turns(episode, per_turn),
        }
        for episode, of_episode, per_turn in zip(case.episodes, returns, advantages)
    ]


def _valid(episode: Episode) -> list[int]:
    """Return the turns that are trained."""
    if any(turn.status.value == "failed" for turn in episode.turns) or episode.failure is not None:
        return []
    return [t for t, turn in enumerate(episode.turns) if turn.status.value == "valid"]


def _returns(episode: Episode, gamma: float) -> list[Fraction]:
    """Return sum_k gamma^k r_(t+k) for each turn."""
    rewards = [Fraction(turn.reward or 0.0) for turn in episode.turns]
    g = Fraction(gamma)
    return [
        sum((g**k * r for k, r in enumerate(rewards[t:])), Fraction(0)) for t in range(len(rewards))
    ]


def _advantages(case: Case, returns: list[list[Fraction]]) -> list[list[Fraction]]:
    """Return one number per turn, 0 for a turn that is not trained."""
    episodes, options = case.episodes, case.arguments
    raw: list[list[Fraction]] = [[Fraction(0)] * len(e.turns) for e in episodes]
    if case.estimator in ("grpo", "rloo"):
        members = defaultdict(list)
        for i, episode in enumerate(episodes):
            if _valid(episode):
                members[_start_of(episode)].append(i)
        for group in members.values():
            for i in group:
                others = [returns[j][0] for j in group if j != i]
                whole = [returns[j][0] for j in group]
                seen = [Fraction(r) for j in group for r in episodes[j].rewards]
                if not others or _constant(whole, seen):
                    value = Fraction(0)
                elif case.estimator == "rloo":
                    value = returns[i][0] - _mean(others)
                elif options.get("scale", True):
                    value = (returns[i][0] - _mean(whole)) / (_std(whole) + EPSILON)
                else:
                    value = returns[i][0] - _mean(whole)
                raw[i] = [value] * len(episodes[i].turns)
    elif case.estimator == "gae":
        raw = [
            _gae(episode, options["values"][i], case.gamma, options.get("lam", 0.95))
            for i, episode in enumerate(episodes)
        ]
    else:
        raw = returns
    normalised = case.estimator in ("rebn", "reinforce++") or options.get("whiten", False)
    if normalised:
        raw = _normalised(case, raw)
    return [
        [a if t in _valid(episode) else Fraction(0) for t, a in enumerate(numbers)]
        for episode, numbers in zip(episodes, raw)
    ]


def _normalised(case: Case, raw: list[list[Fraction]]) -> list[list[Fraction]]:
    """Return (x - mean) / (std + epsilon) over the valid turns, or over their sampled tokens."""
    pools: dict[str, list[Fraction]] = defaultdict(list)
    seen: dict[str, list[Fraction]] = defaultdict(list)
    keys = [e.component if case.arguments.get("per_env") else "" for e in case.episodes]
    for key, episode, numbers in zip(keys, case.episodes, raw):
        turns = _valid(episode)
        for t in turns:
            copies = len(episode.turns[t].action_ids) if case.estimator == "reinforce++" else 1
            pools[key] += [numbers[t]] * copies
        if turns:
            seen[key] += [Fraction(r) for r in episode.rewards]
    return [
        [
            Fraction(0)
            if _constant(pools[key], seen[key])
            else (x - _mean(pools[key])) / (_std(pools[key]) + EPSILON)
            for x in numbers
        ]
        for key, numbers in zip(keys, raw)
    ]


def _gae(episode: Episode, values: Sequence[float], gamma: float, lam: float) -> list[Fraction]:
    """Return sum_k (gamma lambda)^k delta_(t+k)."""
    if not _valid(episode):
        return [Fraction(0)] * len(episode.turns)
    n, g = len(episode.turns), Fraction(gamma)
    v = [Fraction(x) for x in values[:n]]
    v.append(Fraction(0) if episode.stop.value == "terminated" else Fraction(values[n]))
    deltas = [Fraction(episode.turns[t].reward or 0.0) + g * v[t + 1] - v[t] for t in range(n)]
    decay = g * Fraction(lam)
    return [sum((decay**k * d for k, d in enumerate(deltas[t:])), Fraction(0)) for t in range(n)]


def _sequences(episode: Episode, per_turn: Sequence[Fraction]) -> list[dict[str, Any]]:
    """Return the token sequences of an episode, cut where a prompt does not extend the last one."""
    if episode.failure is not None:
        return []
    history: list[int] = []
    pieces: list[list[tuple[int, int | None, float]]] = []
    for t, turn in enumerate(episode.turns):
        sampled_before = bool(pieces) and bool(pieces[-1]) and pieces[-1][-1][1] is not None
        prompt = list(turn.added_ids) if turn.restarted else history + list(turn.added_ids)
        if turn.restarted or (not turn.added_ids and sampled_before):
            pieces.append([(token, None, 0.0) for token in prompt])
        else:
            pieces[-1] += [(token, None, 0.0) for token in turn.added_ids]
        pieces[-1] += [(i, t, p) for i, p in zip(turn.action_ids, turn.logprobs or ())]
        history = prompt + list(turn.action_ids)
    whole = [_until_last_sample(piece) for piece in pieces]
    whole = [piece for piece in whole if piece]
    total = sum(episode.rewards) if len(whole) == 1 and _all_valid(episode) else None
    return [_sequence(piece, episode, per_turn, total) for piece in whole]


def _turns(episode: Episode, per_turn: Sequence[Fraction]) -> list[dict[str, Any]]:
    """Return each turn with sampled tokens as a sequence of its own, after its full prompt."""
    if episode.failure is not None:
        return []
    history: list[int] = []
    turns = []
    for t, turn in enumerate(episode.turns):
        prompt = list(turn.added_ids) if turn.restarted else history + list(turn.added_ids)
        piece: list[tuple[int, int | None, float]] = [(token, None, 0.0) for token in prompt]
        piece += [(i, t, p) for i, p in zip(turn.action_ids, turn.logprobs or ())]
        if turn.action_ids:
            total = turn.reward if _all_valid(episode) else None
            turns.append(_sequence(piece, episode, per_turn, total))
        history = prompt + list(turn.action_ids)
    return turns


def _sequence(
    piece: Sequence[tuple[int, int | None, float]],
    episode: Episode,
    per_turn: Sequence[Fraction],
    total: float | None,
) -> dict[str, Any]:
    valid = set(_valid(episode))
    return {
        "ids": [token for token, _, _ in piece],
        "mask": [int(t in valid) for _, t, _ in piece],
        "advantages": [float(per_turn[t]) if t in valid else 0.0 for _, t, _ in piece],  # type: ignore[index]
        "logprobs": [p for _, _, p in piece],
        "total": total,
    }


def _until_last_sample(piece: list[Any]) -> list[Any]:
    last = max((i for i, (_, t, _) in enumerate(piece) if t is not None), default=-1)
    return piece[: last + 1]


def _all_valid(episode: Episode) -> bool:
    return len(_valid(episode)) == len(episode.turns)


def _start_of(episode: Episode) -> str:
    """Return what two episodes of one group have in common."""
    start = [episode.env_id, episode.seed, episode.wrappers, dict(episode.options)]
    return json.dumps([*start, dict(episode.env_kwargs)], sort_keys=True)


def _mean(numbers: Sequence[Fraction]) -> Fraction:
    return sum(numbers, Fraction(0)) / len(numbers)


def _std(numbers: Sequence[Fraction]) -> Fraction:
    mean = _mean(numbers)
    variance = _mean([(x - mean) ** 2 for x in numbers])
    root = (Decimal(variance.numerator) / Decimal(variance.denominator)).sqrt()
    return Fraction(root)


def _constant(numbers: Sequence[Fraction], rewards: Iterable[Fraction]) -> bool:
    """Whether the numbers differ by rounding only, or there is just one."""
    if len(numbers) < 2:
        return True
    largest = max(abs(x) for x in [*numbers, *rewards])
    return _std(numbers) <= largest / 10**6


def main() -> None:
    """Write the file."""
    cases = [*CASES, *GRADIENT_CASES, ONE_RANK_FAILED]
    lines = [
        f"{json.dumps(case.name)}: {json.dumps(expected(case), separators=(',', ':'))}"
        for case in cases
    ]
    OUT.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
