"""Algorithms report: the tables and figures of docs/baselines.md, from the result files of algorithms.py and nothing else; and
those of the pages of TRL's and verl's adapter, from the metrics of their recipes.

A page's own words stay; what stands between `<!-- table NAME -->` and `<!-- end -->` is replaced.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, combinations
from math import comb, sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from gem_core import HorizonSchedule
from gem_core.errors import ConfigError
from gem_core.training.metrics_file import read_metrics
from gem_eval.curves import draw_curves, pyplot_module, save_figure

PAGE = Path(__file__).parents[1] / "docs" / "baselines.md"
TRL_PAGE, VERL_PAGE = (
    Path(__file__).parents[1] / "adapters" / name / "README.md" for name in ("gem_trl", "gem_verl")
)
FIGURES = PAGE.parent / "images"
TRL_RUNS, VERL_RUN = (Path(__file__).parent / "results" / name for name in ("trl", "verl"))
TRL_SHOWN = {
    "rebn": "ReBN",
    "grpo": "GRPO",
    "rebn-3e-5": "ReBN, 3e-5",
    "grpo-3e-5": "GRPO, 3e-5",
    "rebn-3e-5-untaught": "ReBN, 3e-5, no lessons",
}
T95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}
"""Student's t for a 95% interval of a mean, by the number of seeds."""
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

Result = dict[str, Any]


def read(results: Path) -> dict[str, Result]:
    """All results, by the name of their run."""
    found = {}
    for path in sorted(results.glob("*/*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        found[result["run"]["name"]] = result
    return found


def report(
    results: Path, pages: Sequence[Path] = (PAGE, TRL_PAGE, VERL_PAGE), figures: Path = FIGURES
) -> None:
    """Writes the tables into the pages, and draws the figures."""
    known = read(results)
    if not known:
        raise ConfigError(f"there are no results in {results}; `run` makes them")
    for page in pages:
        page.write_text(filled(page.read_text(encoding="utf-8"), known), encoding="utf-8")
    draw_main(known, figures / "baselines_main.svg")
    draw_sweeps(known, figures / "baselines_sweeps.svg")
    shown = {TRL_SHOWN[name]: [TRL_RUNS / name] for name in ("rebn", "grpo")}
    draw_curves(
        shown, figures / "trl_smollm2.svg", title="SmolLM2-135M in TRL, game:GuessTheNumber-v0-easy"
    )
    print(f"{len(known)} results; written: {', '.join(map(str, pages))}; figures: {figures}")


def filled(text: str, known: dict[str, Result]) -> str:
    """The page with its tables made anew."""

    def table(found: re.Match[str]) -> str:
        name = found[1]
        if name not in TABLES:
            raise ConfigError(
                f"the page asks for the table {name!r}; there are: {', '.join(TABLES)}"
            )
        return f"<!-- table {name} -->\n{TABLES[name](known)}\n<!-- end -->"

    return re.sub(r"<!-- table (\S+) -->\n.*?<!-- end -->", table, text, flags=re.DOTALL)


def interval(values: Sequence[float], percent: bool = False) -> str:
    """A mean with its 95% interval over seeds, as in 0.81 ± 0.05; one seed has none."""
    scale, unit, digits = (100, "%", 1) if percent else (1, "", 3)
    mean = f"{scale * fmean(values):.{digits}f}"
    if len(values) == 1:
        return f"{mean}{unit}"
    return (
        f"{mean} ± {scale * T95[len(values)] * stdev(values) / sqrt(len(values)):.{digits}f}{unit}"
    )


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _group(known: dict[str, Result], prefix: str) -> dict[str, Result]:
    return {
        name.removeprefix(prefix): result
        for name, result in known.items()
        if name.startswith(prefix)
    }


def _last(result: Result, metric: str, count: int = 10) -> float:
    return fmean(result["curve"][metric][-count:])


def _kinds(known: dict[str, Result], prefix: str) -> dict[str, dict[str, list[Result]]]:
    """By environment and algorithm, in the order of SHOWN, the results of all seeds."""
    found: dict[str, dict[str, list[Result]]] = {}
    for result in _group(known, prefix).values():
        run = result["run"]
        kind = (
            UNDISCOUNTED if run["algorithm"] == "rebn" and run["gamma"] == 1.0 else run["algorithm"]
        )
        found.setdefault(run["setting"]["env"], {}).setdefault(kind, []).append(result)
    return {env: {a: kinds[a] for a in SHOWN if a in kinds} for env, kinds in found.items()}


def tuning(known: dict[str, Result]) -> str:
    """Mean return of the last ten updates for each rate, averaged over the trials; the best is what every other run uses."""
    runs = _group(known, "tuning/").values()
    rates = sorted({r["run"]["rate"] for r in runs})
    rows = []
    for algorithm, (name, _) in SHOWN.items():
        tried = [
            [
                _last(r, "return")
                for r in runs
                if (r["run"]["algorithm"], r["run"]["rate"]) == (algorithm, x)
            ]
            for x in rates
        ]
        if all(tried):
            scores = [fmean(found) for found in tried]
            rows.append(
                [
                    name,
                    *(
                        f"**{score:.3f}**" if score == max(scores) else f"{score:.3f}"
                        for score in scores
                    ),
                ]
            )
    return _markdown(["", *(f"{rate:g}" for rate in rates)], rows)


def main_table(known: dict[str, Result]) -> str:
    """Return and success after training, mean and interval over seeds; before training beside it, and what differs from ReBN."""
    before = {
        r["run"]["setting"]["env"]: r["evaluation"] for r in _group(known, "before/").values()
    }
    rows = []
    for env, kinds in _kinds(known, "main/").items():
        first = before.get(env)
        start = [f"{first['return']:.3f}", f"{first['success']:.1%}"] if first else ["", ""]
        rows.append([f"`{env}`", "before", *start, "", "", ""])
        for kind, results in kinds.items():
            success = interval([r["evaluation"]["success"] for r in results], percent=True)
            told = (
                ""
                if kind == "rebn"
                else _told_apart(_returns(results), _returns(kinds.get("rebn", [])))
            )
            rows.append(
                [
                    "",
                    SHOWN[kind][0],
                    interval(_returns(results)),
                    success,
                    told,
                    _idle(results),
                    str(len(results)),
                ]
            )
    return _markdown(
        ["", "", "return", "success", "than ReBN", "updates without gradient", "seeds"], rows
    )


def tests(known: dict[str, Result]) -> str:
    """How many tests stand in the main table, what they are worth together, and one that the table does not have."""
    kinds = _kinds(known, "main/")
    found = []
    for env in kinds.values():
        others = [_returns(results) for kind, results in env.items() if kind != "rebn"]
        found += [
            p
            for p in (chance(ours, _returns(env.get("rebn", []))) for ours in others)
            if p is not None
        ]
    below = sum(p < 0.05 for p in found)
    held = {
        rate: max(
            (i for i, p in enumerate(sorted(found), 1) if p <= rate * i / len(found)), default=0
        )
        for rate in (0.05, 0.1)
    }
    fair = {
        env.partition(":")[2].partition("-")[0]: chance(
            _returns(of[UNDISCOUNTED]), _returns(of["grpo"])
        )
        for env, of in kinds.items()
        if UNDISCOUNTED in of and "grpo" in of
    }
    shown = ", ".join(f"{p:.2f} on {name}" for name, p in fair.items() if p is not None)
    return (
        f"Of {len(found)} tests, {below} have p < 0.05; {held[0.1]} hold at a false discovery rate of 10%, {held[0.05]} at 5% "
        f"(Benjamini and Hochberg). ReBN without discount against GRPO: p = {shown}."
    )


def _idle(results: Sequence[Result]) -> str:
    """The share of updates that had nothing to learn from, as all episodes that were compared had one return."""
    return f"{fmean(norm == 0 for r in results for norm in r['curve']['grad_norm']):.0%}"


def _returns(results: Sequence[Result]) -> list[float]:
    return [r["evaluation"]["return"] for r in results]


def _told_apart(ours: Sequence[float], theirs: Sequence[float]) -> str:
    p = chance(ours, theirs)
    if p is None:
        return ""
    return f"{'not told apart' if p >= 0.05 else 'higher' if fmean(ours) > fmean(theirs) else 'lower'} (p = {p:.3f})"


def chance(ours: Sequence[float], theirs: Sequence[float]) -> float | None:
    """How often means are as far apart as these when seeds are dealt out at random: an exact permutation test, two-sided. None
    where there are so few seeds that it could not come out below 5%."""
    least = (2 if len(ours) == len(theirs) else 1) / comb(len(ours) + len(theirs), len(ours))
    if least >= 0.05:
        return None
    values = [*ours, *theirs]
    gap = abs(fmean(ours) - fmean(theirs))
    as_far = []
    for chosen in combinations(range(len(values)), len(ours)):
        inside = [values[i] for i in chosen]
        outside = [value for i, value in enumerate(values) if i not in chosen]
        as_far.append(abs(fmean(inside) - fmean(outside)) >= gap - 1e-12)
    return fmean(as_far)


def breadth(known: dict[str, Result]) -> str:
    """ReBN against REINFORCE on one id of each kind; a difference within two standard errors of the evaluation is none."""
    before = {r["run"]["setting"]["env"]: r for r in _group(known, "before/").values()}
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
        elif not _apart(first, rebn) and not _apart(first, plain):
            verdict = "no signal at 135M"
        else:
            verdict = {1: "ReBN", -1: "REINFORCE", 0: "not told apart"}[_apart(plain, rebn)]
        single = rebn is not None and rebn["evaluation"]["turns"] == 1.0
        same = f"{rebn['evaluation']['commonest']:.0%}" if single else ""
        rows.append([f"`{env}`", *numbers, verdict, same])
    return _markdown(["", "before", "REINFORCE", "ReBN", "further", "one answer"], rows)


def _apart(one: Result, other: Result) -> int:
    """1 where the other's held-out return is higher by more than two standard errors, -1 where it is lower, else 0."""
    a, b = one["evaluation"], other["evaluation"]
    error = sqrt(
        a["return_std"] ** 2 / one["run"]["evaluated"]
        + b["return_std"] ** 2 / other["run"]["evaluated"]
    )
    gain = b["return"] - a["return"]
    return 0 if abs(gain) <= 2 * error else 1 if gain > 0 else -1


def gamma(known: dict[str, Result]) -> str:
    """How many turns a game took, solved or not, by the discount it was trained with, and when each seed had learnt it."""
    found: dict[float, list[Result]] = {}
    for result in _group(known, "gamma/").values():
        found.setdefault(result["run"]["gamma"], []).append(result)
    rows: list[list[str]] = []
    turns: dict[float, list[float]] = {}
    for number, results in sorted(found.items(), reverse=True):
        evaluations = [r["evaluation"] for r in results]
        success = interval([e["success"] for e in evaluations], percent=True)
        turns[number] = [e["turns"] for e in evaluations]
        each = ", ".join(f"{mean:.2f}" for mean in turns[number])
        reached = [_reached(r["curve"]["success"], 0.9) for r in results]
        updates = ", ".join("never" if at is None else str(at) for at in reached)
        rows.append(
            [f"{number:g}", success, interval(turns[number]), each, updates, _idle(results)]
        )
    head = [
        "γ",
        "success",
        "turns",
        "turns of each seed",
        "over 90% at update",
        "updates without gradient",
    ]
    table = _markdown(head, rows)
    p = chance(
        turns.get(1.0, []),
        [mean for number, means in turns.items() if number < 1 for mean in means],
    )
    return (
        table if p is None else f"{table}\n\nTurns with γ = 1 against all with less: p = {p:.3f}."
    )


def _reached(curve: Sequence[float], level: float) -> int | None:
    """The first update at which the smoothed curve is above that."""
    return next((i for i, value in enumerate(_smooth(curve)) if value > level), None)


def tools(known: dict[str, Result]) -> str:
    """Success on held-out problems with and without the tool, before and after training, and calls a game."""
    found = _group(known, "tools/")
    rows = []
    for task, title in (
        ("maths", "products of two numbers, Python"),
        ("search", "facts of an invented country, search"),
    ):
        for used, shown in (("none", "without"), ("tools", "with")):
            cells = []
            for when in ("before", "after"):
                result = found.get(f"{task}-{used}-{when}")
                cells += (
                    [
                        f"{result['evaluation']['success']:.1%}",
                        f"{result['evaluation']['tool_uses']:.2f}",
                    ]
                    if result
                    else ["", ""]
                )
            rows.append([title if used == "none" else "", shown, *cells])
    return _markdown(
        ["", "tool", "success before", "calls before", "success after", "calls after"], rows
    )


def horizon(known: dict[str, Result]) -> str:
    """A long game trained with fixed and with growing horizons, evaluated with the longest; untrained beside it. The growing one
    samples fewer tokens, so that the fixed one is shown where it had sampled as many, too."""
    found: dict[str, list[Result]] = {}
    for result in _group(known, "horizon/").values():
        found.setdefault(result["run"]["horizon"], []).append(result)
    schedules = {turns: HorizonSchedule.parse(turns) for turns in found if turns}
    ends = {turns: schedule.rounds[-1] for turns, schedule in schedules.items() if schedule}
    longest = [turns for turns, end in ends.items() if end == max(ends.values())]
    budget = min((sum(r["curve"]["tokens"]) for turns in longest for r in found[turns]), default=0)
    rows = []
    for turns, results in sorted(found.items()):
        evaluations = [r["evaluation"] for r in results]
        tokens = fmean(sum(r["curve"].get("tokens", [])) for r in results)
        returns = interval([e["return"] for e in evaluations])
        success = interval([e["success"] for e in evaluations], percent=True)
        at = interval([_after(r["curve"], budget) for r in results]) if turns in longest else ""
        rows.append(
            [
                f"`{turns}`" if turns else "before",
                returns,
                success,
                f"{tokens / 1e3:.0f}k",
                at,
                str(len(results)),
            ]
        )
    head = [
        "turns",
        "return",
        "success",
        "tokens sampled in training",
        f"return in training after {budget / 1e3:.0f}k",
        "seeds",
    ]
    return _markdown(head, rows)


def _after(curve: dict[str, list[float]], tokens: float) -> float:
    """The smoothed return of the last update before more tokens than that were sampled."""
    spent = list(accumulate(curve["tokens"]))
    return _smooth(curve["return"])[
        max(i for i, so_far in enumerate(spent) if i == 0 or so_far <= tokens)
    ]


def speed(known: dict[str, Result]) -> str:
    """Updates a minute and tokens a second, of all runs on the GPU together, and where their time went."""
    rows = []
    alone = [r for r in known.values() if r["run"]["name"].startswith("speed/")]
    packed = [r for r in known.values() if r["run"]["name"].startswith("main/")]
    for title, results in (
        ("alone, 256 episodes an update", alone),
        ("packed, the runs of the main table", packed),
    ):
        if not results:
            continue
        clock = {
            k: sum(r["clock"][k] for r in results)
            for k in ("generation", "environment", "update", "tokens")
        }
        total = clock["generation"] + clock["environment"] + clock["update"]
        updates = sum(r["run"]["updates"] for r in results)
        episodes = sum(r["run"]["updates"] * r["run"]["episodes"] for r in results)
        workers = results[0]["workers"]
        rows.append(
            [
                title,
                str(workers),
                f"{60 * workers * updates / sum(r['seconds'] for r in results):.0f}",
                f"{60 * workers * episodes / sum(r['seconds'] for r in results):.0f}",
                f"{workers * clock['tokens'] / sum(r['seconds'] for r in results):.0f}",
                *(f"{clock[k] / total:.0%}" for k in ("generation", "environment", "update")),
            ]
        )
    head = [
        "",
        "runs at a time",
        "updates a minute, all runs",
        "episodes a minute",
        "tokens a second",
        "generation",
        "environment",
        "update",
    ]
    return _markdown(head, rows)


def trl(known: dict[str, Result]) -> str:
    """Success in the runs of the TRL recipe, at the beginning and the end, and how soon it was high."""
    del known  # theirs are other files
    rows = []
    for folder, title in TRL_SHOWN.items():
        lines = read_metrics(TRL_RUNS / folder)
        success = [line["success"] for line in lines]
        high = _reached(success, 0.9)
        took = (
            "never"
            if high is None
            else f"{high}, {sum(line['seconds'] for line in lines[: high + 1]):.0f} s"
        )
        total = f"{len(lines)} updates, {sum(line['seconds'] for line in lines):.0f} s"
        rows.append(
            [title, f"{fmean(success[:3]):.1%}", f"{fmean(success[-10:]):.1%}", took, total]
        )
    return _markdown(
        ["", "first 3 updates", "last 10 updates", "over 90% at update", "training in all"], rows
    )


def verl(known: dict[str, Result]) -> str:
    """How the run of the verl recipe went, update by update."""
    del known
    shown = (("success", ".1%"), ("turns_mean", ".2f"), ("seconds", ".1f"))
    rows = [
        [str(line["step"]), *(f"{line[key]:{form}}" for key, form in shown)]
        for line in read_metrics(VERL_RUN)
    ]
    return _markdown(["update", "success", "turns", "seconds"], rows)


def origin(known: dict[str, Result]) -> str:
    """What the results were made on, and whether all runs began from the same weights."""
    facts = {
        key: sorted({str(r[key]) for r in known.values()}) for key in ("device", "torch", "model")
    }
    models = (
        "the same weights"
        if len(facts["model"]) == 1
        else f"{len(facts['model'])} sets of weights, one for each machine"
    )
    apart = [x for r in known.values() for x in r["curve"].get("apart", [])]
    trained = sum(r["run"]["updates"] > 0 for r in known.values())
    minutes = sum(r["seconds"] / r["workers"] for r in known.values()) / 60
    where = f"{', '.join(facts['device'])} with torch {', '.join(facts['torch'])}"
    made = (
        f"{trained} trainings, {minutes:.0f} minutes of them, and {len(known) - trained} evaluations of the untrained model, on "
        f"{where}. All began from {models} ({', '.join(facts['model'])})."
    )
    return (
        f"{made} Logprobs of sampler and trainer differ by {fmean(apart):.3f} a token on average."
        if apart
        else made
    )


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
    "verl": verl,
}


def draw_main(known: dict[str, Result], out: Path) -> None:
    """Return over updates, a panel for each environment of the main table."""
    panels = {
        env: {
            SHOWN[kind]: [r["curve"]["return"] for r in results] for kind, results in kinds.items()
        }
        for env, kinds in _kinds(known, "main/").items()
    }
    _draw(panels, ["return"] * len(panels), out)


def draw_sweeps(known: dict[str, Result], out: Path) -> None:
    """Turns over updates for each discount, return over updates for each horizon."""
    discounts: dict[tuple[str, str], list[list[float]]] = {}
    for result in _group(known, "gamma/").values():
        number = result["run"]["gamma"]
        discounts.setdefault((f"γ = {number:g}", GAMMAS[number]), []).append(
            result["curve"]["turns"]
        )
    horizons: dict[tuple[str, str], list[list[float]]] = {}
    for result in _group(known, "horizon/").values():
        if result["run"]["updates"]:
            turns = result["run"]["horizon"]
            horizons.setdefault((f"horizon {turns}", HORIZONS[turns]), []).append(
                result["curve"]["return"]
            )
    panels = {"game:GuessTheNumber-v0-easy, ten turns": discounts, "game:Hangman-v0": horizons}
    _draw(panels, ["turns", "return"], out)


def _draw(
    panels: dict[str, dict[tuple[str, str], list[list[float]]]], labels: Sequence[str], out: Path
) -> None:
    """Curves by name and colour, those of all seeds together: their mean, and a band from the lowest to the highest."""
    pyplot = pyplot_module()
    rows = max(1, -(-len(panels) // 2))
    figure, grid = pyplot.subplots(
        rows, 2, figsize=(10, 3.4 * rows + 0.8), layout="constrained", squeeze=False
    )
    entries: dict[str, Any] = {}
    for axes in list(grid.flat)[len(panels) :]:
        axes.axis("off")
    for axes, (title, lines), label in zip(grid.flat, panels.items(), labels):
        for (name, colour), raw in lines.items():
            curves = [_smooth(curve) for curve in raw]
            steps = range(min(map(len, curves)))
            seeds = [[curve[i] for curve in curves] for i in steps]
            (entries[name],) = axes.plot(steps, [fmean(values) for values in seeds], color=colour)
            if len(curves) > 1:
                axes.fill_between(
                    steps,
                    list(map(min, seeds)),
                    list(map(max, seeds)),
                    color=colour,
                    alpha=0.15,
                    linewidth=0,
                )
        axes.set(title=title, xlabel="update", ylabel=f"{label} (mean of 5 updates)")
        axes.grid(alpha=0.3)
    if entries:
        figure.legend(
            entries.values(), entries.keys(), loc="outside lower center", ncols=4, fontsize="small"
        )
    save_figure(figure, out)


def _smooth(values: Sequence[float], width: int = 5) -> list[float]:
    return [fmean(values[max(0, i + 1 - width) : i + 1]) for i in range(len(values))]
