"""Report of the algorithm benchmark: the tables and figures of docs/baselines.md.

They are made from the result files of algorithms.py. The tables of the TRL and verl adapter pages
are made from the metrics of their recipes. The report replaces the text between
`<!-- table NAME -->` and `<!-- end -->` and keeps the rest of a page.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev

import report_tables
from algorithms_figures import draw_panels, smooth
from report_statistics import discoveries, permutation_p
from report_tables import Result, last, markdown, read, results_under

from gem_core import HorizonSchedule
from gem_core.errors import ConfigError
from gem_core.training.metrics_file import read_metrics
from gem_eval.curves import draw_curves

PAGE = Path(__file__).parents[1] / "docs" / "baselines.md"
TRL_PAGE = Path(__file__).parents[1] / "adapters" / "gem_trl" / "README.md"
FIGURES = PAGE.parent / "images"
TRL_RUNS = Path(__file__).parent / "results" / "trl"
TRL_SHOWN = {
    "rebn": "ReBN",
    "grpo": "GRPO",
    "rebn-3e-5": "ReBN, 3e-5",
    "grpo-3e-5": "GRPO, 3e-5",
    "rebn-3e-5-untaught": "ReBN, 3e-5, no SFT warm-up",
}
T95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}
"""Student's t of a 95% interval of a mean, by number of seeds."""
UNDISCOUNTED = "rebn-undiscounted"
SHOWN = {
    "rebn": ("REINFORCE + ReBN", "#08519c"),
    "reinforce": ("REINFORCE", "#d94801"),
    "grpo": ("GRPO", "#238b45"),
    "ppo": ("PPO", "#6a51a3"),
    "rloo": ("RLOO", "#636363"),
    "reinforce++": ("REINFORCE++", "#c51b8a"),
    UNDISCOUNTED: ("REINFORCE + ReBN, γ = 1", "#6baed6"),
}
"""Name and colour of each algorithm, in the order of the tables."""
GAMMAS = {1.0: "#d94801", 0.95: "#08519c", 0.9: "#4292c6", 0.8: "#9ecae1"}
HORIZONS = {"6": "#636363", "20": "#238b45", "6,12,20@10": "#6a51a3"}


def report(
    results: Path, pages: Sequence[Path] = (PAGE, TRL_PAGE), figures: Path = FIGURES
) -> None:
    """Write the tables into the pages, and draw the figures."""
    known = read(results)
    if not known:
        raise ConfigError(f"no results in {results}; make them with: algorithms.py run")
    for page in pages:
        page.write_text(with_tables(page.read_text(encoding="utf-8"), known), encoding="utf-8")
    draw_main(known, figures / "baselines_main.svg")
    draw_sweeps(known, figures / "baselines_sweeps.svg")
    curves = {TRL_SHOWN[name]: [TRL_RUNS / name] for name in ("rebn", "grpo")}
    title = "SmolLM2-135M in TRL, game:GuessTheNumber-v0-easy"
    draw_curves(curves, figures / "trl_smollm2.svg", title=title)
    print(f"{len(known)} results; written: {', '.join(map(str, pages))}; figures: {figures}")


def with_tables(text: str, known: dict[str, Result]) -> str:
    """Return the text of a page with new tables."""
    return report_tables.with_tables(text, TABLES, known)


def interval(values: Sequence[float], percent: bool = False) -> str:
    """Format a mean with its 95% interval over seeds, such as 0.81 ± 0.05; one seed has none."""
    scale, unit, digits = (100, "%", 1) if percent else (1, "", 3)
    mean = f"{scale * fmean(values):.{digits}f}"
    if len(values) == 1:
        return f"{mean}{unit}"
    half_width = scale * T95[len(values)] * stdev(values) / sqrt(len(values))
    return f"{mean} ± {half_width:.{digits}f}{unit}"


def _kinds(known: dict[str, Result], prefix: str) -> dict[str, dict[str, list[Result]]]:
    """Group results by environment and algorithm, in the order of SHOWN."""
    groups: dict[str, dict[str, list[Result]]] = {}
    for result in results_under(known, prefix).values():
        run = result["run"]
        undiscounted = run["algorithm"] == "rebn" and run["gamma"] == 1.0
        kind = UNDISCOUNTED if undiscounted else run["algorithm"]
        groups.setdefault(run["setting"]["env"], {}).setdefault(kind, []).append(result)
    return {env: {a: kinds[a] for a in SHOWN if a in kinds} for env, kinds in groups.items()}


def tuning(known: dict[str, Result]) -> str:
    """Mean return of the last ten updates per rate; all other runs use the best rate."""
    results = results_under(known, "tuning/").values()
    rates = sorted({r["run"]["rate"] for r in results})
    rows = []
    for algorithm, (name, _) in SHOWN.items():
        own = [r for r in results if r["run"]["algorithm"] == algorithm]
        returns = [[last(r, "return") for r in own if r["run"]["rate"] == rate] for rate in rates]
        if all(returns):
            scores = [fmean(values) for values in returns]
            best = max(scores)
            cells = [f"**{score:.3f}**" if score == best else f"{score:.3f}" for score in scores]
            rows.append([name, *cells])
    return markdown(["", *(f"{rate:g}" for rate in rates)], rows)


def main_table(known: dict[str, Result]) -> str:
    """Return and success before and after training, and the difference from ReBN."""
    before = {
        r["run"]["setting"]["env"]: r["evaluation"]
        for r in results_under(known, "before/").values()
    }
    rows = []
    for env, kinds in _kinds(known, "main/").items():
        first = before.get(env)
        values = [f"{first['return']:.3f}", f"{first['success']:.1%}"] if first else ["", ""]
        rows.append([f"`{env}`", "before", *values, "", "", ""])
        rebn = _returns(kinds.get("rebn", []))
        for kind, results in kinds.items():
            returns = _returns(results)
            success = interval([r["evaluation"]["success"] for r in results], percent=True)
            verdict = "" if kind == "rebn" else _verdict(returns, rebn)
            cells = [interval(returns), success, verdict, _without_gradient(results)]
            rows.append(["", SHOWN[kind][0], *cells, str(len(results))])
    return markdown(
        ["", "", "return", "success", "against ReBN", "updates without gradient", "seeds"], rows
    )


def tests(known: dict[str, Result]) -> str:
    """Number of significant tests of the main table, and the test of ReBN without discount."""
    kinds = _kinds(known, "main/")
    p_values = []
    for env in kinds.values():
        rebn = _returns(env.get("rebn", []))
        others = [_returns(results) for kind, results in env.items() if kind != "rebn"]
        p_values += [p for p in (permutation_p(ours, rebn) for ours in others) if p is not None]
    below = sum(p < 0.05 for p in p_values)
    undiscounted = {
        env.partition(":")[2].partition("-")[0]: permutation_p(
            _returns(of[UNDISCOUNTED]), _returns(of["grpo"])
        )
        for env, of in kinds.items()
        if UNDISCOUNTED in of and "grpo" in of
    }
    shown = ", ".join(f"{p:.2f} on {name}" for name, p in undiscounted.items() if p is not None)
    return (
        f"Of {len(p_values)} tests, {below} have p < 0.05; {discoveries(p_values, 0.1)} are "
        f"significant at a false discovery rate of 10%, {discoveries(p_values)} at 5% "
        "(Benjamini and Hochberg). "
        f"ReBN without discount against GRPO: p = {shown}."
    )


def _without_gradient(results: Sequence[Result]) -> str:
    """Share of updates without a gradient, because all compared episodes had the same return."""
    return f"{fmean(norm == 0 for r in results for norm in r['curve']['grad_norm']):.0%}"


def _returns(results: Sequence[Result]) -> list[float]:
    return [r["evaluation"]["return"] for r in results]


def _verdict(ours: Sequence[float], theirs: Sequence[float]) -> str:
    p = permutation_p(ours, theirs)
    if p is None:
        return ""
    direction = "higher" if fmean(ours) > fmean(theirs) else "lower"
    return f"{'not significantly different' if p >= 0.05 else direction} (p = {p:.3f})"


def breadth(known: dict[str, Result]) -> str:
    """ReBN against REINFORCE on one id of each kind, by two standard errors of the evaluation."""
    before = {r["run"]["setting"]["env"]: r for r in results_under(known, "before/").values()}
    rows = []
    for env, kinds in _kinds(known, "breadth/").items():
        compared = [
            before.get(env),
            *(kinds.get(algorithm, [None])[0] for algorithm in ("reinforce", "rebn")),
        ]
        numbers = ["" if r is None else f"{r['evaluation']['return']:.3f}" for r in compared]
        first, plain, rebn = compared
        if first is None or plain is None or rebn is None:
            verdict = "not run"
        elif not _sign(first, rebn) and not _sign(first, plain):
            verdict = "no signal at 135M"
        else:
            verdicts = {1: "ReBN", -1: "REINFORCE", 0: "not significantly different"}
            verdict = verdicts[_sign(plain, rebn)]
        single = rebn is not None and rebn["evaluation"]["turns"] == 1.0
        share = f"{rebn['evaluation']['commonest']:.0%}" if single else ""
        rows.append([f"`{env}`", *numbers, verdict, share])
    head = ["", "before", "REINFORCE", "ReBN", "higher return", "most common answer"]
    return markdown(head, rows)


def _sign(first: Result, second: Result) -> int:
    """Sign of the difference of the held-out returns; 0 within two standard errors."""
    a, b = first["evaluation"], second["evaluation"]
    error = sqrt(
        a["return_std"] ** 2 / first["run"]["evaluated"]
        + b["return_std"] ** 2 / second["run"]["evaluated"]
    )
    gain = b["return"] - a["return"]
    return 0 if abs(gain) <= 2 * error else 1 if gain > 0 else -1


def gamma(known: dict[str, Result]) -> str:
    """Turns per episode, solved or not, and the update that reaches 90% success, by discount."""
    by_discount: dict[float, list[Result]] = {}
    for result in results_under(known, "gamma/").values():
        by_discount.setdefault(result["run"]["gamma"], []).append(result)
    rows: list[list[str]] = []
    turns: dict[float, list[float]] = {}
    for discount, results in sorted(by_discount.items(), reverse=True):
        evaluations = [r["evaluation"] for r in results]
        success = interval([e["success"] for e in evaluations], percent=True)
        turns[discount] = [e["turns"] for e in evaluations]
        each = ", ".join(f"{mean:.2f}" for mean in turns[discount])
        reached = [_reached(r["curve"]["success"], 0.9) for r in results]
        updates = ", ".join("never" if at is None else str(at) for at in reached)
        cells = [success, interval(turns[discount]), each, updates, _without_gradient(results)]
        rows.append([f"{discount:g}", *cells])
    columns = ["turns of each seed", "over 90% at update", "updates without gradient"]
    table = markdown(["γ", "success", "turns", *columns], rows)
    discounted = [mean for discount, means in turns.items() if discount < 1 for mean in means]
    p = permutation_p(turns.get(1.0, []), discounted)
    return table if p is None else f"{table}\n\nTurns with γ = 1 against γ < 1: p = {p:.3f}."


def _reached(curve: Sequence[float], level: float) -> int | None:
    """Return the first update at which the smoothed curve is above a level."""
    return next((i for i, value in enumerate(smooth(curve)) if value > level), None)


def tools(known: dict[str, Result]) -> str:
    """Success on held-out problems and tool calls, with and without the tool."""
    results = results_under(known, "tools/")
    rows = []
    for task, title in (
        ("maths", "products of two numbers, Python"),
        ("search", "facts of an invented country, search"),
    ):
        for used, shown in (("none", "without"), ("tools", "with")):
            cells = []
            for when in ("before", "after"):
                result = results.get(f"{task}-{used}-{when}")
                if result is None:
                    cells += ["", ""]
                else:
                    e = result["evaluation"]
                    cells += [f"{e['success']:.1%}", f"{e['tool_uses']:.2f}"]
            rows.append([title if used == "none" else "", shown, *cells])
    return markdown(
        ["", "tool", "success before", "calls before", "success after", "calls after"], rows
    )


def horizon(known: dict[str, Result]) -> str:
    """A long game with fixed and growing horizons, evaluated with the longest one.

    The growing horizon samples fewer tokens, so one column compares returns at equal tokens.
    """
    by_horizon: dict[str, list[Result]] = {}
    for result in results_under(known, "horizon/").values():
        by_horizon.setdefault(result["run"]["horizon"], []).append(result)
    schedules = {turns: HorizonSchedule.parse(turns) for turns in by_horizon if turns}
    ends = {turns: schedule.rounds[-1] for turns, schedule in schedules.items() if schedule}
    longest = [turns for turns, end in ends.items() if end == max(ends.values())]
    budget = min(
        (sum(r["curve"]["tokens"]) for turns in longest for r in by_horizon[turns]), default=0
    )
    rows = []
    for turns, results in sorted(by_horizon.items()):
        evaluations = [r["evaluation"] for r in results]
        tokens = fmean(sum(r["curve"].get("tokens", [])) for r in results)
        returns = interval([e["return"] for e in evaluations])
        success = interval([e["success"] for e in evaluations], percent=True)
        at_budget = ""
        if turns in longest:
            at_budget = interval([_return_after(r["curve"], budget) for r in results])
        cells = [returns, success, f"{tokens / 1e3:.0f}k", at_budget, str(len(results))]
        rows.append([f"`{turns}`" if turns else "before", *cells])
    training = f"return in training after {budget / 1e3:.0f}k"
    head = ["turns", "return", "success", "tokens sampled in training", training, "seeds"]
    return markdown(head, rows)


def _return_after(curve: dict[str, list[float]], tokens: float) -> float:
    """Return the smoothed return of the last update within a token budget."""
    totals = list(accumulate(curve["tokens"]))
    last = max(i for i, total in enumerate(totals) if i == 0 or total <= tokens)
    return smooth(curve["return"])[last]


def _concurrent(result: Result) -> int:
    """Return the number of runs that shared the GPU."""
    return int(result["workers"] * result.get("lanes", 1))


def speed(known: dict[str, Result]) -> str:
    """Updates per minute and tokens per second of all concurrent runs, and the shares of time.

    The shares are those of the runs that did not share their process: see `Clock`.
    """
    rows = []
    alone = [r for r in known.values() if r["run"]["name"].startswith("speed/")]
    packed = [r for r in known.values() if r["run"]["name"].startswith("main/")]
    for title, results in (
        ("alone, 256 episodes per update", alone),
        ("packed, the runs of the main table", packed),
    ):
        if not results:
            continue
        clocks = [r["clock"] for r in results if r.get("lanes", 1) == 1]
        parts = [sum(c[k] for c in clocks) for k in ("generation", "environment", "update")]
        updates = sum(r["run"]["updates"] for r in results)
        episodes = sum(r["run"]["updates"] * r["run"]["episodes"] for r in results)
        tokens = sum(r["clock"]["tokens"] for r in results)
        seconds = sum(r["seconds"] / _concurrent(r) for r in results)
        rows.append(
            [
                title,
                ", ".join(map(str, sorted(set(map(_concurrent, results))))),
                f"{60 * updates / seconds:.0f}",
                f"{60 * episodes / seconds:.0f}",
                f"{tokens / seconds:.0f}",
                *(f"{part / sum(parts):.0%}" if clocks else "" for part in parts),
            ]
        )
    rates = ["updates per minute (all runs)", "episodes per minute", "tokens per second"]
    head = ["", "concurrent runs", *rates, "generation", "environment", "update"]
    return markdown(head, rows)


def trl(known: dict[str, Result]) -> str:
    """Success in the runs of the TRL recipe at the start and the end, and when it passes 90%."""
    del known  # the recipe has its own files
    rows = []
    for folder, title in TRL_SHOWN.items():
        lines = read_metrics(TRL_RUNS / folder)
        success = [line["success"] for line in lines]
        seconds = list(accumulate(line["seconds"] for line in lines))
        high = _reached(success, 0.9)
        reached = "never" if high is None else f"{high}, {seconds[high]:.0f} s"
        total = f"{len(lines)} updates, {seconds[-1]:.0f} s"
        shares = [f"{fmean(success[:3]):.1%}", f"{fmean(success[-10:]):.1%}"]
        rows.append([title, *shares, reached, total])
    return markdown(
        ["", "first 3 updates", "last 10 updates", "over 90% at update", "total training"], rows
    )


def origin(known: dict[str, Result]) -> str:
    """Number of runs, their device, and whether they all start from the same weights."""
    facts = {
        key: sorted({str(r[key]) for r in known.values()}) for key in ("device", "torch", "model")
    }
    models = (
        "the same weights"
        if len(facts["model"]) == 1
        else f"{len(facts['model'])} sets of weights, one per machine"
    )
    differences = [x for r in known.values() for x in r["curve"].get("apart", [])]
    trained = sum(r["run"]["updates"] > 0 for r in known.values())
    minutes = sum(r["seconds"] / _concurrent(r) for r in known.values()) / 60
    where = f"{', '.join(facts['device'])} with torch {', '.join(facts['torch'])}"
    text = (
        f"{trained} training runs ({minutes:.0f} minutes in total) and {len(known) - trained} "
        f"evaluations of the untrained model, on {where}. "
        f"All start from {models} ({', '.join(facts['model'])})."
    )
    if differences:
        mean = fmean(differences)
        text += f" The logprobs of sampler and trainer differ by {mean:.3f} per token on average."
    return text


TABLES: dict[str, Callable[[dict[str, Result]], str]] = {
    "origin": origin,
    "tuning": tuning,
    "main": main_table,
    "tests": tests,
    "breadth": breadth,
    "gamma": gamma,
    "tools": tools,
    "horizon": horizon,
    "speed": speed,
    "trl": trl,
}


def draw_main(known: dict[str, Result], out: Path) -> None:
    """Draw the return over updates, one panel per environment of the main table."""
    panels = {
        env: {
            SHOWN[kind]: [r["curve"]["return"] for r in results] for kind, results in kinds.items()
        }
        for env, kinds in _kinds(known, "main/").items()
    }
    draw_panels(panels, ["return"] * len(panels), out)


def draw_sweeps(known: dict[str, Result], out: Path) -> None:
    """Draw turns over updates per discount, and return over updates per horizon."""
    discounts: dict[tuple[str, str], list[list[float]]] = {}
    for result in results_under(known, "gamma/").values():
        discount = result["run"]["gamma"]
        curves = discounts.setdefault((f"γ = {discount:g}", GAMMAS[discount]), [])
        curves.append(result["curve"]["turns"])
    horizons: dict[tuple[str, str], list[list[float]]] = {}
    for result in results_under(known, "horizon/").values():
        if result["run"]["updates"]:
            turns = result["run"]["horizon"]
            curves = horizons.setdefault((f"horizon {turns}", HORIZONS[turns]), [])
            curves.append(result["curve"]["return"])
    panels = {"game:GuessTheNumber-v0-easy, ten turns": discounts, "game:Hangman-v0": horizons}
    draw_panels(panels, ["turns", "return"], out)
