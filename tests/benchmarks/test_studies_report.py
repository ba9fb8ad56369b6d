"""The report of the studies on made-up results: tests, false discoveries, incomplete sets."""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Callable
from dataclasses import asdict
from math import inf
from pathlib import Path
from statistics import stdev
from typing import Any

import pytest
from project import ROOT

from gem_core import make
from gem_core.errors import ConfigError

sys.path.insert(0, str(ROOT / "benchmarks"))

import corridor
import report_statistics
import studies_plan
import studies_report
from algorithms_plan import HELD_OUT, Run
from studies_report import (
    algorithms,
    asynchronous,
    claims,
    comparison,
    credit,
    critic,
    horizon,
    larger,
    scenarios,
    transfer,
)

Results = dict[str, dict[str, Any]]


def made_up(score: Callable[[Run], float]) -> Results:
    """Return a result for every run of the plan, whose score decides its returns."""
    results = {}
    for run in studies_plan.plan():
        rng = random.Random(run.name)
        own = score(run)
        updates = 0 if not run.updates else 40 if run.token_budget else run.updates
        curve = [own * min(1.0, (i + 1) / 20) + rng.gauss(0, 0.01) for i in range(updates)]
        # of four tasks, training raises the second and lowers the third
        tasks = [0.2, -0.2, 0.2, -0.2] if run.updates == 0 else [0.2, 0.2, -0.2, -0.2]
        evaluation = {"return": own, "success": max(0.0, min(1.0, own))}
        evaluation["returns"] = [own + more for more in tasks] * (run.evaluated // 4)
        lists = {"return": curve, "success": curve, "tokens": [8000] * updates}
        if run.name.startswith("horizon/"):
            lists["horizon"] = [40] * updates
            rooms = {str(n): evaluation["success"] for n in corridor.ROOMS}
            evaluation = {**evaluation, "success_by_rooms": rooms}
        if run.name.startswith("async/"):
            seconds = {"sync": 4.0, "one-off": 2.0, "stream": 1.0}[run.rollout] + 0.01 * run.seed
            lists |= {"seconds": [seconds] * updates, "lag": [0.5] * updates}
            lists["lag_max"] = [2] * updates
        results[run.name] = {
            "run": {**asdict(run), "rate": run.rate or 3e-5},
            "evaluation": evaluation,
            "transfer": {s.name: evaluation for s in run.transfer},
            "curve": lists if updates else {},
            "clock": {"generation": 10.0, "environment": 50.0, "update": 20.0},
            "workers": 1,
            "stages": stages(own + 0.001 * run.seed),
            "device": "a GPU",
            "torch": "2",
            "model": "larger" if run.gguf_sha256 else "m",
            "critic_losses": [1.65] * run.critic_batches,
        }
    return results


def stages(gain: float) -> dict[str, Any]:
    """Return the three stages of a scenario in which SFT and RL gain."""
    values = {"before": 0.1, "sft": 0.1 + gain, "rl": 0.1 + 1.5 * gain}
    return {
        name: {
            "within": [share * turn / 8 for turn in range(1, 9)],
            "pass": {str(k): min(0.8, share * k) for k in (1, 2, 4, 8)},
            "turns": 4.0,
        }
        for name, share in values.items()
    }


def rebn_wins(run: Run) -> float:
    """ReBN is above all others on all but chain_sum; growing horizons win; the rest is equal."""
    noise = 0.001 * run.seed
    study, _, name = run.name.partition("/")
    if study == "horizon":
        return 0.5 + 0.3 * name.startswith(("growing", "gated")) + noise
    if study == "credit":
        gains = {"episode": 0.1, "rebn-1": 0.3, "rebn-0.5": 0.6, "ppo-0.5": 0.3}
        own = gains[name.rpartition("-")[0].partition("-")[2]]
        late = {"episode": 0.3, "rebn-0.5": 0.0}
        if name.startswith("PayLate"):
            own = late.get(name.rpartition("-")[0].partition("-")[2], own)
        return own + noise
    if study == "critic":
        return (0.4 if name.startswith("PayLate") else 0.6) + noise
    if study == "transfer":
        return 0.0 if name == "none" else 0.1
    if study == "async":
        return 0.9 + noise
    return 0.3 + 0.2 * (run.algorithm == "rebn" and "chain_sum" not in name) + noise


@pytest.fixture(scope="module")
def complete() -> Results:
    return made_up(rebn_wins)


def test_discoveries_are_those_of_benjamini_and_hochberg() -> None:
    p_values = [0.001, 0.008, 0.039, 0.041, 0.042, 0.06, 0.074, 0.205]
    assert report_statistics.discoveries(p_values) == 2  # 0.039 > 0.05 * 3 / 8, and so on
    assert report_statistics.discoveries([0.04, 0.04]) == 2  # the second p carries the first
    assert report_statistics.discoveries([0.04, 0.04], planned=4) == 0  # missing tests count as 1
    assert report_statistics.discoveries([]) == 0


def test_comparison_has_the_known_answer() -> None:
    c = comparison.compare([5, 6, 7, 8], [1, 2, 3, 4])
    assert c is not None
    assert (c.difference, c.superiority, c.seeds) == (4, 1.0, (4, 4))
    assert c.p == pytest.approx(2 / 70)
    # 3.182 * sqrt(2 * 1.667 / 4)
    assert (c.low, c.high) == pytest.approx((4 - 2.905, 4 + 2.905), abs=1e-3)
    resampled = comparison.compare([5, 6, 7, 8], [1, 2, 3, 4], resampled=True)
    assert resampled is not None and 1.5 < resampled.low < 4 < resampled.high < 6.5
    shares = comparison.with_interval([1.0, 1.0, 1.0, 0.6], percent=True)
    assert shares == "90.0 [58.2, 100.0] %"
    assert comparison.compare([5, 6, 7], [1, 2, 3, 4]) is None, "three seeds"
    equal = comparison.compare([1, 2, 3, 4], [1, 2, 3, 4])
    assert equal is not None and (equal.p, equal.superiority) == (1.0, 0.5)


def test_bootstrap_interval_contains_the_mean_and_is_the_same_every_time() -> None:
    values = [0.1, 0.4, 0.2, 0.9, 0.5]
    low, high = report_statistics.bootstrap(values)
    assert min(values) <= low < 0.42 < high <= max(values)
    assert report_statistics.bootstrap(tuple(values)) == (low, high)
    assert report_statistics.bootstrap([0.5] * 4) == (0.5, 0.5)


def test_complete_results_decide_the_tests_of_the_plan(complete: Results) -> None:
    table = algorithms.tests_table(complete)
    assert table.startswith("35 of 35 tests have four seeds or more on both sides; 30 are ")
    assert "| Hangman | PPO | +0.200 [" in table
    assert table.count("ReBN higher") == 30 and table.count("not significant") == 5
    assert "preliminary" not in table
    ratio = algorithms.ratio_table(complete)
    assert ratio.startswith("9 of 9 tests") and "; 0 are significant" in ratio
    rows = algorithms.results_table(complete).splitlines()
    start = "|  | ReBN | 0.504 [0.501, 0.506] | 50.4 [50.1, 50.6] % | "
    row = next(row for row in rows if row.startswith(start))
    # the return rises over 20 of 30 updates
    assert "| 0.345 [" in row and row.endswith("] | 0 | 8 |")


def test_table_of_seeds_has_one_success_for_each_run(complete: Results) -> None:
    name = f"credit/PayLate-episode-{studies_plan.SEEDS - 1}"
    missing = {key: result for key, result in complete.items() if key != name}
    for known, count in ((complete, studies_plan.SEEDS), (missing, studies_plan.SEEDS - 1)):
        (line,) = [
            line
            for line in credit.seeds_table(known).splitlines()
            if line.startswith("| PayLate | episode-level |")
        ]
        shares = [float(share) for share in re.findall(r"(\d+)%", line)]
        assert len(shares) == count
        assert shares == sorted(shares, reverse=True)
    assert credit.seeds_table({}) == "No run is done."


def test_predictions_about_credit_are_judged(complete: Results) -> None:
    verdicts = [verdict for _, verdict in credit.verdicts(complete).values()]
    assert verdicts == ["holds"] * len(credit.PREDICTIONS)
    reverse = made_up(lambda run: -rebn_wins(run))
    judged = {p: verdict for p, (_, verdict) in credit.verdicts(reverse).items()}
    assert {v for p, v in judged.items() if p.kind == "faster"} == {"does not hold"}


def test_reasons_of_ppo_are_judged(complete: Results) -> None:
    table = critic.results_table(complete)
    assert table.count("| holds |") == 2
    assert "| 0 of 8 runs lose it; in credit/ 0 of 8 | open |" in table
    own = {name: result for name, result in complete.items() if name.startswith("critic/")}
    lost = {
        name: {**result, "curve": {"success": [0.9] * 20 + [0.1] * 10}}
        for name, result in own.items()
        if "PayLast" in name
    }
    table = critic.results_table({**complete, **lost})
    assert "| 8 of 8 runs lose it; in credit/ 0 of 8 | the noise is not the reason |" in table
    untrained = {name: {**result, "critic_losses": [2.1] * 10} for name, result in own.items()}
    table = critic.results_table({**complete, **untrained})
    assert table.count("| holds |") == 1 and "| open: not every critic has learned |" in table
    assert table.count("2.10") == 8
    assert critic.results_table({}) == "No run is done."
    assert critic.results_table(lost).count("| fewer than four seeds | open |") == 2


def test_claims_follow_from_complete_results(complete: Results) -> None:
    verdicts = [claim.rule(complete)[0] for claim in claims.CLAIMS if claim.rule]
    assert verdicts == [
        "holds",  # ReBN beats REINFORCE on 6 of 7 environments
        "holds",
        "holds",
        "holds",
        "holds",  # stream takes a quarter of the time
        "holds",
        "undecided",  # no run with 40 turns is unstable, in 40 updates
        "holds",
        "undecided",  # web and SciWorld are not trained on a GPU
    ]
    others_win = made_up(lambda run: -rebn_wins(run))
    assert claims.CLAIMS[0].rule(others_win)[0] == "does not hold"
    assert claims.CLAIMS[1].rule(others_win)[0] == "does not hold"


def test_unstable_run_ends_below_its_best_at_the_same_horizon() -> None:
    curve = {"success": [0.9] * 5 + [0.3] * 10, "horizon": [40] * 15}
    assert horizon.unstable({"curve": curve})
    assert not horizon.unstable({"curve": {**curve, "horizon": [5] * 5 + [40] * 10}})
    one_high = {"success": [0.85] + [0.62] * 29, "horizon": [40] * 30}
    assert not horizon.unstable({"curve": one_high}), "the mean of five updates is lower"


def test_time_to_the_target_skips_the_first_two_updates() -> None:
    curve = {"success": [0.5] * 4 + [1.0] * 6, "seconds": [100.0, 9.0] + [2.0] * 8}
    # the mean of updates 3 to 7 is 0.8, that of 2 to 6 is 0.7
    assert asynchronous.reached({"curve": curve}) == (10.0, 7)
    assert asynchronous.reached({"curve": {**curve, "success": [0.7] * 10}}) == (16.0, None)


def test_asynchronous_rollouts_are_compared_with_the_synchronous_one(complete: Results) -> None:
    table = asynchronous.results_table(complete)
    # 19 updates until 0.75, and the first two do not count
    assert "| `sync` | 68 (68 to 69) | 19.0 | 4.02 |" in table
    assert table.count("` faster |") == 2 and "preliminary" not in table
    assert "Every run had the GPU to itself." in table
    assert "0.25 of the time; sampling and update take 0.60 s | holds |" in table
    assert "| +0%, +0% | holds |" in table
    known = few(complete, lambda run: run.seed < 4)
    assert asynchronous.results_table(known).count("faster, preliminary") == 2


def test_runs_that_miss_the_target_decide_nothing() -> None:
    """Their time is that of all updates, and an asynchronous update takes less of it."""
    known = made_up(lambda run: 0.6)
    table = asynchronous.results_table(known)
    assert table.count("| open: not all runs reach 75 % |") == 2 and "faster" not in table
    (claim,) = [c for c in claims.CLAIMS if "asynchronous" in c.text]
    assert claim.rule(known) == ("undecided", "not all runs of `sync` and `stream` reach 75 %")


def test_predictions_about_horizons_are_judged(complete: Results) -> None:
    table = horizon.results_table(complete)
    assert "| 5 turns: stays below 85 % success | 50.2 % | holds |" in table
    assert "| before | 50.0 % | 50.0 % |" in table
    assert "are missing" in horizon.predictions(few(complete, lambda run: run.seed < 4))


def test_scenarios_judge_the_predictions(complete: Results) -> None:
    table = scenarios.results_table(complete)
    assert table.count("| 3 of 3 |") == 3
    row = next(line for line in table.splitlines() if line.startswith("| TextCraft | before"))
    assert "| 2.5 % | 5.0 % | 10.0 % | 20.0 % | 40.0 % | 80.0 % | 4.0 of 8 | 3 |" in row
    worse = made_up(lambda run: -0.05)
    assert scenarios.predictions(worse).count("| 0 of 3 |") == 3
    assert scenarios.predictions(few(complete, lambda run: run.seed < 2)).endswith(
        "when all seeds are done."
    )


def test_few_is_tested_within_runs(complete: Results) -> None:
    table = scenarios.few_table(complete)
    # seven differences of the same sign: p = 2 / 2^7
    assert table.count("| 0.0156 | holds |") == 3
    assert "| TextCraft | 80.0 % | 80.0 % |" in table  # the pilot
    (claim,) = [c for c in claims.CLAIMS if "improves agents" in c.text]
    verdict, evidence = claim.rule(complete)
    assert verdict == "undecided"
    assert evidence.startswith("RL is significantly above SFT in deep search (on questions that it")
    assert "trained on) and BabyAI; web and SciWorld" in evidence
    without = few(complete, lambda run: not run.name.startswith("few/BabyAI-6"))
    for lacking in (without, {}):
        assert claim.rule(lacking)[1].startswith("deep search or BabyAI lacks seeds in few/; web")
    assert scenarios.few_table(without).count("| holds |") == 2
    assert scenarios.few_table({}) == "No run is done."


def test_transfer_marks_the_cells_outside_their_intervals(complete: Results) -> None:
    table = transfer.table(complete)
    # the differences of four tasks are 0.1, 0.5, -0.3 and 0.1: 1.96 * 0.284 / sqrt(128) = 0.0492
    alone = 18 - len(transfer.QUESTIONS)
    assert table.count("**+0.100 ± 0.049**") >= 7 * alone
    assert table.count("+0.100 ±") == 7 * 18 + 7
    assert "| mean | **+0.100 ± 0.01" in table
    assert table.endswith("| seeds of training | 3 | 3 | 3 | 3 | 3 | 3 | 3 |")


def test_seeds_of_one_task_count_once_in_the_interval() -> None:
    changes = [0.1, 0.5, -0.3, 0.1]
    alone = transfer.half_interval(changes, range(4))
    assert alone == pytest.approx(1.96 * stdev(changes) / 2)
    assert transfer.half_interval(changes * 3, [0, 1, 2, 3] * 3) == pytest.approx(alone)
    assert transfer.half_interval(changes, [7] * 4) == inf


@pytest.mark.parametrize("env", ["qa:Sample-v0", "logic:Sample-v0", "code:Sample-v0"])
def test_tasks_of_held_out_seeds_are_those_that_the_environment_draws(env: str) -> None:
    with make(env) as played:
        drawn = [played.reset(seed=HELD_OUT + i)[1]["index"] for i in range(20)]
    assert transfer.tasks_of(env, 20) == drawn


def test_training_that_changes_nothing_elsewhere_decides_nothing(complete: Results) -> None:
    (claim,) = [c for c in claims.CLAIMS if "helps on others" in c.text]
    same = made_up(lambda run: 0.3)
    assert claim.rule(same) == ("undecided", "higher after 0 and lower after 0 of 6 trainings")
    lower = made_up(lambda run: 0.3 if run.name == "transfer/none" else 0.1)
    assert claim.rule(lower)[0] == "does not hold"
    missing = {name: r for name, r in complete.items() if name != "transfer/Hangman-2"}
    assert claim.rule(missing) == ("pending", "runs of 1 of 6 trainings are missing")


def test_larger_model_has_its_scores_before_and_after_training(complete: Results) -> None:
    rows = larger.results_table(complete).splitlines()[2:]
    assert rows.index("") == 3 * (1 + 3)
    assert rows[0] == "| GuessTheNumber | before | 0.300 | 30.0 % |  |"
    assert rows[1] == "|  | ReBN | 0.501 (0.500 to 0.502) | 50.1 % | 3 |"
    known = few(complete, lambda run: not run.gguf_sha256)
    assert larger.results_table(known) == "No run is done."
    assert "All runs start from the same weights (m)." in studies_report.progress(known)
    text = studies_report.progress(complete)
    assert "The runs of `larger/` start from the same weights (larger)." in text
    assert "`few/`, `ratio/` start from the same weights (m)." in text


def test_predictions_about_the_larger_model_are_judged(complete: Results) -> None:
    rows = larger.predictions(complete).splitlines()[2:]
    assert [row.split("|")[2:4] for row in rows] == [
        [" 30.0 % ", " does not hold "],
        [" all are ", " holds "],
        [" none is ", " holds "],
    ]
    others = made_up(lambda run: 0.6 - 0.4 * (run.algorithm == "rebn"))
    rows = larger.predictions(others).splitlines()[2:]
    assert "60.0 % | holds" in rows[0]
    assert "| except ReBN on GuessTheNumber, REINFORCE on GuessTheNumber, GRPO on" in rows[1]
    assert "| REINFORCE on GuessTheNumber, GRPO on GuessTheNumber, REINFORCE on Hangman" in rows[2]
    assert all(row.endswith(" does not hold |") for row in rows[1:])
    assert "2 are missing" in larger.predictions(few(complete, lambda run: unfinished(run.name)))


def unfinished(name: str) -> bool:
    return name not in ("larger/Hangman-before", "larger/chain_sum-grpo-2")


def test_report_rejects_larger_runs_of_the_small_model(complete: Results, tmp_path: Path) -> None:
    for name in ("larger/Hangman-rebn-0", "before/Hangman"):
        path = tmp_path / f"{name}.json"
        path.parent.mkdir()
        path.write_text(json.dumps({**complete[name], "model": "m"}))
    with pytest.raises(ConfigError, match="start from the same model"):
        studies_report.report(tmp_path)
    other = tmp_path / "before" / "chain_sum.json"
    other.write_text(json.dumps({**complete["before/chain_sum"], "model": "other"}))
    with pytest.raises(ConfigError, match="results of before/ start from several models"):
        studies_report.report(tmp_path)
    other.unlink()
    other = tmp_path / "algorithms" / "Hangman-rebn-0.json"
    other.parent.mkdir()
    other.write_text(json.dumps({**complete["algorithms/Hangman-rebn-0"], "model": "other"}))
    with pytest.raises(ConfigError, match="algorithms/, before/ are compared, but start from"):
        studies_report.report(tmp_path)


def few(complete: Results, keep: Callable[[Run], bool]) -> Results:
    runs = [run for run in studies_plan.plan() if run.name in complete and keep(run)]
    return {run.name: complete[run.name] for run in runs}


def test_three_seeds_give_no_test_no_interval_and_no_verdict(complete: Results) -> None:
    known = few(complete, lambda run: run.seed < 3 or run.seed == 100)
    assert algorithms.tests_table(known) == "0 of 35 tests have four seeds or more on both sides."
    assert "[" not in algorithms.results_table(known)
    assert {verdict for _, verdict in credit.verdicts(known).values()} == {"open"}
    verdicts = [claim.rule(known)[0] for claim in claims.CLAIMS if claim.rule]
    counts = {verdict: verdicts.count(verdict) for verdict in set(verdicts) - {"pending"}}
    assert counts == {"holds": 1, "undecided": 1}, "transfer, and agents"
    assert "0 of 6 tests" in horizon.results_table(known)


def test_tests_with_fewer_seeds_than_planned_are_preliminary(complete: Results) -> None:
    known = few(complete, lambda run: run.seed < 5 or run.seed == 100)
    table = algorithms.tests_table(known)
    assert table.count("ReBN higher, preliminary") == 30
    assert claims.CLAIMS[0].rule(known) == (
        "pending",
        "tests of 7 of 7 environments have fewer seeds than planned",
    )
    # one environment only: the other 30 tests of the plan count as p = 1
    known = few(known, lambda run: "Hangman" in run.name)
    # 2 of 252 permutations: 5 tests with p = 0.0079 need 0.05 * 5 / 35 = 0.0071
    assert algorithms.tests_table(known).startswith("5 of 35 tests")
    assert "; 0 are significant" in algorithms.tests_table(known)


@pytest.mark.parametrize("kept", [0, 1, 8])
def test_report_works_with_incomplete_results(
    complete: Results, tmp_path: Path, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # takes seconds, and does not depend on results
    monkeypatch.setitem(studies_report.TABLES, "separation", lambda known: "")
    known = few(complete, lambda run: run.seed < kept or run.seed == 100 or not run.updates)
    for name, result in known.items():
        path = tmp_path / "results" / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result))
    page = tmp_path / "studies.md"
    page.write_text(studies_report.PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    studies_report.report(tmp_path / "results", page, tmp_path / "images")
    text = page.read_text(encoding="utf-8")
    assert f"| all | {len(known)} | {len(studies_plan.plan())} |" in text
    linked = [name for name in studies_report.DRAW if f"(images/studies_{name}.svg)" in text]
    drawn = [path.name for path in (tmp_path / "images").glob("*.svg")]
    assert sorted(drawn) == sorted(f"studies_{name}.svg" for name in linked)
    # the page also has the committed runs on a CPU
    assert len(drawn) == (8 if kept else 1)


def test_report_names_what_is_wrong_with_the_results(tmp_path: Path) -> None:
    (tmp_path / "credit").mkdir()
    (tmp_path / "credit" / "x.json").write_text(json.dumps({"run": {"name": "credit/x"}}))
    with pytest.raises(ConfigError, match="not in the plan: credit/x"):
        studies_report.report(tmp_path)
