"""Report of the studies: the tables and figures of docs/studies.md, from results of `studies.py`.

It works with incomplete results: missing runs are counted and skipped, no test has fewer than four
seeds on either side, and a missing test of the plan counts as p = 1.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import algorithms_report
import report_tables
import studies_plan
from report_tables import Result, markdown, read, results_under
from studies_plan import RESULTS, plan

from gem_core.errors import ConfigError
from studies_report import (
    algorithms,
    asynchronous,
    claims,
    credit,
    critic,
    horizon,
    larger,
    scenarios,
    transfer,
)

__all__ = [
    "FIGURES",
    "PAGE",
    "RESULTS",
    "TABLES",
    "plan",
    "progress",
    "read",
    "report",
    "with_tables",
]

PAGE = Path(__file__).parents[2] / "docs" / "studies.md"
FIGURES = PAGE.parent / "images"


def progress(known: dict[str, Result]) -> str:
    """How many runs of the plan are done, and on which machine."""
    planned: dict[str, int] = {}
    for run in plan():
        study = run.name.partition("/")[0]
        planned[study] = planned.get(study, 0) + 1
    rows = [
        [f"`{study}/`", str(len(results_under(known, f"{study}/"))), str(count)]
        for study, count in planned.items()
    ]
    rows.append(["all", str(len(known)), str(sum(planned.values()))])
    table = markdown(["study", "done", "planned"], rows)
    if not known:
        return table
    facts = {key: sorted({str(r[key]) for r in known.values()}) for key in ("device", "torch")}
    studies: dict[str, list[str]] = {}
    for study, (model,) in _models(known).items():
        studies.setdefault(model, []).append(f"`{study}/`")
    starts = []
    for model, own in studies.items():
        runs = f"The runs of {', '.join(own)}" if len(studies) > 1 else "All runs"
        starts.append(f"{runs} start from the same weights ({model}).")
    text = f"The runs used {', '.join(facts['device'])} with torch {', '.join(facts['torch'])}."
    return f"{table}\n\n{' '.join([text, *starts])}"


def _models(known: dict[str, Result]) -> dict[str, set[str]]:
    """Return the fingerprints of the initial weights of each study."""
    models: dict[str, set[str]] = {}
    for name, result in known.items():
        models.setdefault(name.partition("/")[0], set()).add(result["model"])
    return models


def _tuning(known: dict[str, Result]) -> str:
    """The mean return of each learning rate."""
    if not results_under(known, "tuning/"):
        return "No run is done."
    return algorithms_report.tuning(known)


def _planned(name: str) -> Callable[[dict[str, Result]], str]:
    """Return a function that quotes what the plan says about a study, word by word."""

    def quote(known: dict[str, Result]) -> str:
        del known
        end = r"(?=\n\n\*\*|\Z)"
        section = re.search(rf"\*\*{name}/?\*\*.*?{end}", studies_plan.__doc__ or "", re.DOTALL)
        if section is None:
            raise ConfigError(f"studies_plan.py has no section **{name}**")
        return "\n".join(f"> {line}".rstrip() for line in section[0].strip().splitlines())

    return quote


FIGURE_TEXTS = {
    "algorithms": "Return in training of six algorithms",
    "credit": "Learning curves of four kinds of credit, with a thin line per seed",
    "transfer": "Difference to the untrained model, by trained and evaluated environment",
    "horizon": "Success with 40 turns by the number of rooms, after training with five horizons",
    "async": "Success in training over time, of three rollouts on a GPU",
    "async_tiny": "Success in training over time, of three rollouts with the tiny model on a CPU",
    "scenarios": "Share of episodes solved within 1 to 8 turns, before, after SFT and after RL",
    "few": "Share of episodes solved within 1 to 8 turns, before, after little SFT and after RL",
}
DRAW: dict[str, Callable[[dict[str, Result], Path], bool]] = {
    "algorithms": algorithms.draw,
    "credit": credit.draw,
    "transfer": transfer.draw,
    "horizon": horizon.draw,
    "async": asynchronous.draw,
    "async_tiny": asynchronous.draw_tiny,
    "scenarios": scenarios.draw,
    "few": scenarios.draw_few,
}
PLANNED = (
    "changes",
    "tuning",
    "algorithms",
    "ratio",
    "credit",
    "critic",
    "transfer",
    "horizon",
    "async",
    "scenarios",
    "few",
    "larger",
)
"""Studies whose plan the page quotes."""


def _figure(name: str) -> Callable[[dict[str, Result]], str]:
    def link(known: dict[str, Result]) -> str:
        if name == "async_tiny":
            known = asynchronous.tiny_results("async")
        study = name.partition("_")[0]
        trained = any(r["curve"] for r in results_under(known, f"{study}/").values())
        if not trained or (name == "transfer" and not transfer.differences(known)):
            return "The figure is drawn when runs are done."
        return f"![{FIGURE_TEXTS[name]}](images/studies_{name}.svg)"

    return link


TABLES: dict[str, Callable[[dict[str, Result]], str]] = {
    "progress": progress,
    "claims": claims.claims_table,
    "tuning": _tuning,
    "algorithms": algorithms.results_table,
    "tests": algorithms.tests_table,
    "ratio": algorithms.ratio_table,
    "separation": credit.separation_table,
    "credit": credit.predictions_table,
    "credit-seeds": credit.seeds_table,
    "critic": critic.results_table,
    "horizon": horizon.results_table,
    "transfer": transfer.table,
    "async": asynchronous.results_table,
    "async-tiny": asynchronous.tiny_table,
    "async-frameworks": asynchronous.frameworks_table,
    "scenarios": scenarios.results_table,
    "scenarios-tiny": scenarios.tiny_table,
    "few": scenarios.few_table,
    "larger": larger.results_table,
    **{f"figure-{name}": _figure(name) for name in DRAW},
    **{f"plan-{name}": _planned(name) for name in PLANNED},
}


def with_tables(text: str, known: dict[str, Result]) -> str:
    """Return the text of a page with new tables."""
    return report_tables.with_tables(text, TABLES, known)


def report(results: Path = RESULTS, page: Path = PAGE, figures: Path = FIGURES) -> None:
    """Write the tables into the page, and draw the figures of the studies that have results."""
    known = read(results)
    unknown = set(known) - {run.name for run in plan()}
    if unknown:
        raise ConfigError(f"results of runs that are not in the plan: {', '.join(sorted(unknown))}")
    models = _models(known)
    mixed = [f"{study}/" for study, own in models.items() if len(own) > 1]
    if mixed:
        raise ConfigError(
            f"the results of {', '.join(mixed)} start from several models; keep those of one"
        )
    larger_models = models.pop("larger", set())
    if len(set().union(*models.values())) > 1:
        raise ConfigError(
            f"the results of {', '.join(f'{study}/' for study in models)} are compared, but start "
            "from several models; keep those of one"
        )
    if any(larger_models & own for own in models.values()):
        raise ConfigError(
            "results of larger/ and of other studies start from the same model; larger/ needs the "
            "model of larger_model.py: delete its results, and run them again"
        )
    page.write_text(with_tables(page.read_text(encoding="utf-8"), known), encoding="utf-8")
    drawn = [name for name, draw in DRAW.items() if draw(known, figures / f"studies_{name}.svg")]
    print(f"{len(known)} results; written: {page}; figures: {', '.join(drawn) or 'none'}")
