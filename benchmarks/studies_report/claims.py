"""Claims of the two papers, and the rules that decide them from the results of the studies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean

from report_statistics import t_interval
from report_tables import Result, markdown
from studies_plan import (
    ASYNC_SEEDS,
    HORIZON_SEEDS,
    SCHEDULES,
    SEEDS,
    TRANSFER_SEEDS,
)

from studies_report import asynchronous, credit, horizon, scenarios, transfer
from studies_report.algorithms import (
    ALGORITHM_TESTS,
    ALGORITHMS,
    SATURATED,
    against_rebn,
    returns_of,
    saturated,
    seeds_of,
    untrained_returns,
)
from studies_report.comparison import Comparison, significant

__all__ = ["CLAIMS", "claims_table"]

HOLDS, FAILS = "holds", "does not hold"
PENDING, UNDECIDED, UNTESTED = "pending", "undecided", "not tested"
VERDICTS = (HOLDS, FAILS, UNDECIDED, PENDING, UNTESTED)
MARGIN = 0.05
"""A return that is lower by less than this counts as not lower."""
Verdict = tuple[str, str]
"""The verdict and its evidence. Pending: runs are missing. Undecided: the rule says neither."""


@dataclass(frozen=True)
class Claim:
    """A claim, the rule that judges it, and what would decide it."""

    paper: str
    text: str
    decided_by: str
    rule: Callable[[dict[str, Result]], Verdict] | None = None


def _complete(c: Comparison | None, seeds: int = SEEDS) -> bool:
    return c is not None and min(c.seeds) >= seeds


def _beats_reinforce(known: dict[str, Result]) -> Verdict:
    tests = against_rebn(known)
    own = {key: c for key, c in tests.items() if key[1] == "reinforce"}
    missing = sum(not _complete(c) for c in own.values())
    found = significant(tests, ALGORITHM_TESTS)
    higher, lower = _counts(own, found)
    evidence = f"ReBN higher on {higher} and lower on {lower} of {len(own)} environments, of which "
    evidence += f"{len(saturated(known))} have all algorithms within {SATURATED}"
    if missing:
        return (
            PENDING,
            f"tests of {missing} of {len(own)} environments have fewer seeds than planned",
        )
    if lower:
        return FAILS, evidence
    return (HOLDS if higher > len(own) / 2 else UNDECIDED), evidence


def _matches_others(known: dict[str, Result]) -> Verdict:
    tests = against_rebn(known)
    own = {key: c for key, c in tests.items() if key[1] in ("grpo", "ppo")}
    missing = sum(not _complete(c) for c in own.values())
    if missing:
        return PENDING, f"{missing} of {len(own)} tests have fewer seeds than planned"
    found = significant(tests, ALGORITHM_TESTS)
    _, lower = _counts(own, found)
    close = sum(c is not None and c.low > -MARGIN for c in own.values())
    evidence = f"ReBN lower in {lower} of {len(own)} tests; in {close}, at most {MARGIN} lower"
    if lower:
        return FAILS, evidence
    return (HOLDS if close == len(own) else UNDECIDED), evidence


def _counts(
    own: dict[tuple[str, str], Comparison | None], found: set[tuple[str, str]]
) -> tuple[int, int]:
    signs = [c.difference > 0 for key, c in own.items() if c is not None and key in found]
    return sum(signs), len(signs) - sum(signs)


def _turn_credit(known: dict[str, Result]) -> Verdict:
    verdicts = [
        verdict
        for p, (_, verdict) in credit.verdicts(known).items()
        if p.kind == "faster" and p.theirs == "episode"
    ]
    complete = all(
        len(seeds_of(known, f"credit/{env}-{name}")) == SEEDS
        for env in ("PayNow", "PayLast")
        for name in ("episode", "rebn-1", "rebn-0.5")
    )
    if not complete:
        return PENDING, "runs of PayNow or PayLast are missing"
    held = verdicts.count(HOLDS)
    evidence = f"{held} of {len(verdicts)} predictions against episode-level credit hold"
    if FAILS in verdicts:
        return FAILS, evidence
    return (HOLDS if held == len(verdicts) else UNDECIDED), evidence


def _generalises(known: dict[str, Result]) -> Verdict:
    means, seeds = transfer.mean_differences(known), transfer.seed_means(known)
    single = [name for name in transfer.trained_on() if name != "mixture"]
    missing = sum(len(seeds.get(name, [])) < TRANSFER_SEEDS for name in single)
    if missing:
        return PENDING, f"runs of {missing} of {len(single)} trainings are missing"
    above = below = 0
    for name in single:
        difference, half = means[name]
        above += difference > half and min(seeds[name]) > 0
        below += difference < -half and max(seeds[name]) < 0
    evidence = f"higher after {above} and lower after {below} of {len(single)} trainings"
    if above > len(single) / 2 and not below:
        return HOLDS, evidence
    return (FAILS if below > above else UNDECIDED), evidence


def _scaling_inter(known: dict[str, Result]) -> Verdict:
    tests = horizon.growing_against_fixed(known)
    found = significant(tests, horizon.TESTS)
    tests = {key: c for key, c in tests.items() if key[0].startswith("growing")}
    missing = sum(not _complete(c, HORIZON_SEEDS) for c in tests.values())
    if missing:
        return PENDING, f"{missing} of {len(tests)} tests have fewer seeds than planned"
    higher, lower = _counts(tests, found)
    evidence = f"growing horizons higher in {higher} and lower in {lower} of {len(tests)} tests"
    if lower:
        return FAILS, evidence
    return (HOLDS if higher == len(tests) else UNDECIDED), evidence


def _long_collapses(known: dict[str, Result]) -> Verdict:
    counts = {}
    for name in SCHEDULES:
        results = seeds_of(known, f"horizon/{name}")
        if len(results) < HORIZON_SEEDS:
            return PENDING, "runs of horizon/ are missing"
        counts[name] = sum(map(horizon.unstable, results))
    others = max(count for name, count in counts.items() if name != "fixed-40")
    updates = fmean(len(r["curve"]["success"]) for r in seeds_of(known, "horizon/fixed-40"))
    evidence = f"{counts['fixed-40']} of {HORIZON_SEEDS} runs with 40 turns are unstable, "
    evidence += f"in {updates:.0f} updates"
    # too few updates to refute it: AgentGym-RL reports a collapse after hundreds
    collapse = counts["fixed-40"] > HORIZON_SEEDS / 2 and others < counts["fixed-40"]
    return (HOLDS if collapse else UNDECIDED), evidence


def _improves_textcraft(known: dict[str, Result]) -> Verdict:
    before = known.get("before/TextCraft")
    cells = [returns_of(known, f"algorithms/TextCraft-{name}") for name in ALGORITHMS]
    if before is None or any(len(own) < SEEDS for own in cells):
        return PENDING, "runs of TextCraft are missing"
    level = fmean(untrained_returns(before))
    above = sum(t_interval(own)[0] > level for own in cells)
    evidence = f"{above} of {len(cells)} algorithms end above the untrained model"
    if above == len(cells):
        return HOLDS, evidence
    return (FAILS if not above else UNDECIDED), evidence


def _halves_time(known: dict[str, Result]) -> Verdict:
    tests = asynchronous.against_sync(known)
    missing = sum(not _complete(c, ASYNC_SEEDS) for c in tests.values())
    if missing:
        return PENDING, f"{missing} of {len(tests)} tests have fewer seeds than planned"
    sync, stream = (fmean(asynchronous.seconds_of(known, name)) for name in ("sync", "stream"))
    if not asynchronous.all_reach(known, "sync", "stream"):
        return UNDECIDED, "not all runs of `sync` and `stream` reach 75 %"
    evidence = f"until the same success, `stream` takes {stream / sync:.2f} of the time of `sync`"
    if ("stream", "sync") not in significant(tests, asynchronous.TESTS):
        return UNDECIDED, evidence
    return (HOLDS if stream <= sync / 2 else FAILS), evidence


def _improves_agents(known: dict[str, Result]) -> Verdict:
    tests = scenarios.after_few(known)
    complete = {name: test for name, test in tests.items() if test is not None}
    better = [n for n in significant(complete, len(tests)) if complete[n].difference > 0]
    named = {"DeepSearch": "deep search (on questions that it trained on)", "BabyAI": "BabyAI"}
    above = [text for name, text in named.items() if name in better]
    where = " and ".join(above) or "neither deep search nor BabyAI"
    evidence = f"RL is significantly above SFT in {where}"
    if not all(name in complete for name in named):
        evidence = "deep search or BabyAI lacks seeds in few/"
    return UNDECIDED, f"{evidence}; web and SciWorld have one run of the tiny model"


CLAIMS = (
    Claim(
        "GEM",
        "ReBN is consistently better than REINFORCE",
        "algorithms/: significantly higher on more than half of the environments, lower on none",
        _beats_reinforce,
    ),
    Claim(
        "GEM",
        "ReBN is as good as PPO and GRPO, or better, everywhere",
        f"algorithms/: significantly lower nowhere, all intervals above -{MARGIN}",
        _matches_others,
    ),
    Claim(
        "GEM",
        "rewards per turn help where episodes hide which turn earned them",
        "credit/: all predictions against episode-level credit in PayNow and PayLast hold",
        _turn_credit,
    ),
    Claim(
        "GEM",
        "training on one environment helps on others",
        "transfer/: the mean over the others rises after more than half of the trainings, and "
        "falls after none (outside its interval, and with every seed); does not hold if it falls "
        "after more trainings than it rises after",
        _generalises,
    ),
    Claim(
        "GEM",
        "tools raise the success on maths and questions",
        "runs with and without tools, several seeds; [Baselines](baselines.md#tools) has one seed",
    ),
    Claim(
        "GEM",
        "asynchronous rollout halves the time of training",
        "async/: the time of `stream` until the same success is significantly lower, and at most "
        "half; [Asynchronous rollout](async_rollout.md) has the rollout alone",
        _halves_time,
    ),
    Claim(
        "AgentGym-RL",
        "a growing horizon (ScalingInter-RL) is better than a fixed one",
        "horizon/: all four tests of the growing horizons are significant in their favour",
        _scaling_inter,
    ),
    Claim(
        "AgentGym-RL",
        "training with a long fixed horizon collapses",
        "horizon/: most runs with 40 turns are unstable, and more than with other schedules; "
        "too few updates to refute it",
        _long_collapses,
    ),
    Claim(
        "AgentGym-RL",
        "RL improves an agent in TextCraft",
        "algorithms/: the intervals of all algorithms are above the untrained model",
        _improves_textcraft,
    ),
    Claim(
        "AgentGym-RL",
        "RL improves agents in web, deep search, SciWorld and BabyAI",
        "a training with several seeds in each, after an SFT warm-up on expert trajectories; "
        "scenarios/ has web and SciWorld with the tiny model only",
        _improves_agents,
    ),
    Claim(
        "AgentGym-RL",
        "training and test-time compute matter more than model size",
        "models of several sizes, before and after training, by turns allowed and pass@k",
    ),
    Claim(
        "AgentGym-RL",
        "a trained 7B model matches commercial models",
        "a 7B model and the hosted models on the same tasks",
    ),
)


def claims_table(known: dict[str, Result]) -> str:
    """The claims with their verdicts."""
    rows, counts = [], Counter[str]()
    for claim in CLAIMS:
        verdict, evidence = claim.rule(known) if claim.rule else (UNTESTED, "")
        counts[verdict] += 1
        rows.append([claim.paper, claim.text, f"**{verdict}**", evidence, claim.decided_by])
    shares = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict])
    table = markdown(["paper", "claim", "here", "evidence", "decided by"], rows)
    return f"Of {len(CLAIMS)} claims: {shares}.\n\n{table}"
