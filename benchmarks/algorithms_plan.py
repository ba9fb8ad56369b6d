"""The runs of `algorithms.py`: environments, algorithms, seeds, and the tuned learning rates."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from gem_core.errors import ConfigError

RESULTS = Path(__file__).parent / "results" / "algorithms"


@dataclass(frozen=True)
class Setting:
    """An environment and its settings, small enough for 1,024 tokens per episode."""

    env: str
    kwargs: dict[str, Any] = field(default_factory=dict)
    tokens: int = 16
    """Maximum tokens per turn."""
    turns: int | None = None
    """Turn limit, if it is lower than that of the environment."""
    tools: str = ""
    eval_kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments that replace those of `kwargs` in the evaluation."""
    guesses: bool = False
    """Whether the SFT warm-up trains on the content of random answers, not only on their format."""

    @property
    def name(self) -> str:
        return self.env.partition(":")[2] if self.env.startswith("game:") else self.env

    def in_folder(self, work: Path) -> Setting:
        """Return the setting with {work} replaced by the folder of the problems."""
        return Setting(**json.loads(json.dumps(asdict(self)).replace("{work}", str(work))))


HELD_OUT = 2**30
"""The first evaluation seed; training uses the seeds below."""
GUESS = Setting("game:GuessTheNumber-v0-easy")
SLACK = replace(GUESS, kwargs={"max_turns": 10})
"""Enough turns to find the number by counting, so only a discount favours short episodes."""
HANGMAN = Setting("game:Hangman-v0-easy")
OTHERS = {"seed": 10_000}
"""Seed of evaluation tasks: a generator makes task i from seed + i, and training uses 500 tasks
from seed 42. A small generator may repeat some of its questions."""
SUM = Setting(
    "rg:chain_sum",
    {"config": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}},
    eval_kwargs=OTHERS,
    guesses=True,
)
SETTINGS = [
    GUESS,
    HANGMAN,
    Setting("game:Mastermind-v0-easy", {"max_turns": 6}),
    Setting("game:Wordle-v0-easy", {"max_turns": 6}),
    Setting("game:TowerofHanoi-v0-easy"),
    Setting("game:Minesweeper-v0-easy", turns=6),
    Setting("game:Sokoban-v0-easy", {"num_boxes": 1, "max_turns": 8}),
    Setting("game:FifteenPuzzle-v0-easy", {"max_turns": 8}),
    Setting("game:Game2048-v0-easy", turns=8),
    Setting("game:Sudoku-v0-easy", turns=6),
    Setting("game:WordSearch-v0-easy", turns=2),
    Setting("game:Crosswords-v0-easy", turns=4),
    SUM,
    Setting("rg:letter_counting", eval_kwargs=OTHERS),
    Setting("rg:syllogism", eval_kwargs=OTHERS),
    Setting("rg:isomorphic_strings", eval_kwargs=OTHERS),
    Setting("rg:needle_haystack", eval_kwargs=OTHERS),
    Setting("math:Sample-v0"),
    Setting("logic:Sample-v0"),
    Setting("qa:Sample-v0"),
    Setting("code:Sample-v0", tokens=32),
    Setting("search:DeepSearch-v0", {"k": 1, "max_turns": 4}, tokens=24),
    Setting("textcraft:TextCraft-v0-depth1", {"max_turns": 6}, tokens=24),
    Setting("babyai:GoToLocalS8N7-v0", {"max_turns": 8}, tokens=24),
]
"""One environment of every kind that only needs Python (no Java, browser or bubblewrap)."""
MATHS = Setting(
    "math:Sample-v0",
    {"dataset": "{work}/products.jsonl"},
    24,
    eval_kwargs={"dataset": "{work}/products_eval.jsonl"},
)
SEARCH = Setting(
    "qa:Sample-v0",
    {"dataset": "{work}/facts.jsonl"},
    32,
    eval_kwargs={"dataset": "{work}/facts_eval.jsonl"},
)
TOOLS = {
    "maths": (MATHS, "python(max_uses=1)"),
    "search": (SEARCH, "search(index='{work}/index',k=1,max_uses=1)"),
}

RATES = (1e-5, 3e-5, 1e-4)
TRIALS = {GUESS.env: 128, HANGMAN.env: 64}
"""Episodes per update of the environments for tuning; games with ten turns have fewer.

Each algorithm of the main table runs with all RATES and one seed on them, and uses the best."""
TUNED_AS = {
    "reinforce": "reinforce",
    "rebn": "rebn",
    "grpo": "grpo",
    "ppo": "ppo",
    "rloo": "grpo",
    "reinforce++": "rebn",
}
"""The algorithm whose tuned rate each algorithm uses; those with a single seed are not tuned."""
MAIN = {**TRIALS, "game:TowerofHanoi-v0-easy": 64, "rg:chain_sum": 128}
SEEDS = 5
LONG = Setting("game:Hangman-v0", tokens=16)
SCHEDULES = {"fixed-6": "6", "fixed-20": "20", "scaling": "6,12,20@10"}
GROUPED = ("grpo", "rloo")


@dataclass(frozen=True)
class Steps:
    """Optimizer steps on one batch. By default one, where PPO's ratio is 1."""

    epochs: int = 1
    mini_batches: int = 1
    clip: float = 0.2
    """PPO's clip range; it does nothing in the first step."""


@dataclass(frozen=True)
class Run:
    """All settings of a training run that differ between runs."""

    name: str
    setting: Setting
    algorithm: str
    seed: int = 0
    updates: int = 30
    episodes: int = 128
    rate: float | None = None
    """None: the best rate of the tuning runs."""
    gamma: float = 0.9
    horizon: str = ""
    evaluated: int = 256
    """Episodes on held-out seeds, after the training."""
    steps: Steps = Steps()
    lam: float = 0.95
    """GAE's lambda, for PPO."""
    critic_batches: int = 0
    """Batches of the first policy that train PPO's critic alone, before the first update."""
    mixture: tuple[Setting, ...] = ()
    """Environments that share each batch equally, instead of `setting`."""
    transfer: tuple[Setting, ...] = ()
    """Environments that the trained model is also evaluated on."""
    token_budget: int | None = None
    """Sampled tokens after which the training ends, also before the last of its `updates`."""
    warm_up: bool = True
    """Whether the SFT warm-up has episodes of the environment."""
    rollout: str = "sync"
    """`sync`, or one of the asynchronous rollouts of `uneven.py`."""
    expert_updates: int = 0
    """SFT updates on episodes of an expert before RL; more than 0 for those of `scenarios.py`."""
    expert_pilot: str = ""
    """The runs whose results choose `expert_updates`, without their own: see `chosen_updates`."""
    expert_episodes: int = 256
    """Seeds that the expert plays for them."""
    expert_size: int = 32
    """Episodes per update."""
    expert_rate: float = 1e-4
    """Learning rate of these updates."""
    passes: int = 0
    """Episodes per held-out seed for pass@k, in `scenarios.py`."""
    concurrency: int | None = None
    """Episodes at a time, if fewer than the slots: each may need a browser or a Java process."""
    timed: bool = False
    """Whether the time of the run is a result, so runs of other kinds must not share the GPU."""
    gguf_sha256: str = ""
    """GGUF file of the run's model, as in its config.json; empty: the model of the SFT warm-up."""

    @property
    def samples(self) -> int:
        """Episodes per seed: eight for algorithms that compare groups."""
        return 8 if self.algorithm in GROUPED else 1

    @property
    def cell(self) -> str:
        """The name without the seed: a cell of the report's tables."""
        return self.name.removesuffix(f"-{self.seed}")

    @property
    def path(self) -> Path:
        return Path(f"{self.name}.json")


def plan() -> list[Run]:
    """Return all runs, the most important ones first."""
    settings = {s.env: s for s in SETTINGS}

    def trained(name: str, setting: Setting, algorithm: str, **more: Any) -> Run:
        gamma = 1.0 if algorithm in GROUPED else 0.9  # GRPO and RLOO compare whole episodes
        return Run(name, setting, algorithm, **{"gamma": gamma, **more})

    def untrained(name: str, setting: Setting) -> Run:
        return Run(name, setting, "none", updates=0)

    def compared(seed: int) -> list[Run]:
        runs = []
        for env, episodes in MAIN.items():
            setting, title = settings[env], f"main/{_slug(settings[env])}"
            size = {"seed": seed, "episodes": episodes}
            for algorithm in TUNED_AS:
                if seed == 0 or algorithm not in ("rloo", "reinforce++"):
                    runs.append(trained(f"{title}-{algorithm}-{seed}", setting, algorithm, **size))
            if env in TRIALS:  # tests whether GRPO only lacks the discount
                name = f"{title}-rebn-undiscounted-{seed}"
                runs.append(trained(name, setting, "rebn", gamma=1.0, **size))
        return runs

    def discounts(seed: int) -> list[Run]:
        return [
            trained(
                f"gamma/{gamma:g}-{seed}",
                SLACK,
                "rebn",
                seed=seed,
                gamma=gamma,
                updates=45,
                evaluated=1024,
            )
            for gamma in (1.0, 0.95, 0.9, 0.8)
        ]

    def horizons(seed: int) -> list[Run]:
        return [
            trained(
                f"horizon/{schedule}-{seed}",
                LONG,
                "rebn",
                seed=seed,
                horizon=horizon,
                gamma=1.0,
                episodes=64,
            )
            for schedule, horizon in SCHEDULES.items()
        ]

    more: dict[str, Any] = {"episodes": 256, "updates": 20, "rate": RATES[1], "timed": True}
    runs = [trained("speed/alone", GUESS, "rebn", **more)]
    for env, episodes in TRIALS.items():
        for rate in RATES:
            for algorithm in dict.fromkeys(TUNED_AS.values()):
                name = f"tuning/{_slug(settings[env])}-{algorithm}-{rate:g}"
                runs.append(
                    trained(name, settings[env], algorithm, seed=100, rate=rate, episodes=episodes)
                )
    runs += [untrained(f"before/{_slug(s)}", s) for s in SETTINGS]
    for task, (setting, tools) in TOOLS.items():
        for used in ("", tools):
            name = f"tools/{task}-{'tools' if used else 'none'}"
            with_tools = replace(setting, tools=used)
            runs.append(untrained(f"{name}-before", with_tools))
            runs.append(trained(f"{name}-after", with_tools, "rebn", gamma=1.0))
    for seed in range(3):
        runs += compared(seed)
    for seed in range(3):
        runs += discounts(seed)
    runs.append(untrained("horizon/before", LONG))
    for seed in range(3):
        runs += horizons(seed)
    short = {"updates": 20, "episodes": 64, "evaluated": 128}
    for s in SETTINGS:
        for algorithm in ("rebn", "reinforce"):
            runs.append(trained(f"breadth/{_slug(s)}-{algorithm}", s, algorithm, **short))
    for seed in range(3, SEEDS):
        runs += compared(seed)
    return runs


def tuned(out: Path, planned: Sequence[Run] | None = None) -> dict[str, float]:
    """Return the best rate of each algorithm by the mean return of the last ten updates."""
    scores: dict[tuple[str, float], list[float]] = {}
    for run in plan() if planned is None else planned:
        if not run.name.startswith("tuning/"):
            continue
        if not (out / run.path).is_file():
            raise ConfigError(
                f"{run.name} has no result, and the learning rates depend on it; first run tuning/"
            )
        curve = json.loads((out / run.path).read_text(encoding="utf-8"))["curve"]["return"]
        scores.setdefault((run.algorithm, run.rate or 0.0), []).append(fmean(curve[-10:]))
    return {
        algorithm: max(RATES, key=lambda rate: fmean(scores[like, rate]))
        for algorithm, like in TUNED_AS.items()
    }


def chosen_updates(out: Path, prefix: str, planned: Sequence[Run]) -> int:
    """Return the SFT updates that a pilot chooses, from the runs whose name begins with `prefix`.

    The fewest after which a single try solves 20 to 70 %, or the one nearest to 45 %.
    """
    shares: dict[int, float] = {}
    for run in planned:
        if run.name.startswith(f"{prefix}-"):
            if not (out / run.path).is_file():
                raise ConfigError(
                    f"{run.name} has no result, and the SFT updates depend on it; first run "
                    f"{prefix}-"
                )
            result = json.loads((out / run.path).read_text(encoding="utf-8"))
            shares[run.expert_updates] = result["stages"]["sft"]["pass"]["1"]
    between = [count for count, share in shares.items() if 0.2 <= share <= 0.7]
    return min(between) if between else min(shares, key=lambda count: abs(shares[count] - 0.45))


def _slug(setting: Setting) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", setting.name)


def selected_runs(names: Sequence[str], runs: Sequence[Run] | None = None) -> list[Run]:
    """Return the runs of a plan that the names select; without names, all of them.

    A name is that of a run, of a cell (the run without its seed) or, if there is no such cell, the
    beginning of run names. The runs have the order of the names, then that of the plan.
    """
    runs = plan() if runs is None else list(runs)
    if not names:
        return runs
    cells = {run.cell for run in runs}
    selected = {
        run.name: run
        for name in names
        for run in runs
        if (run.cell == name if name in cells else run.name.startswith(name))
    }
    return list(selected.values())


def missing_runs(
    names: Sequence[str], out: Path, planned: Sequence[Run] | None = None
) -> list[Run]:
    """Return the selected runs that are not done."""
    runs = selected_runs(names, planned)
    if not runs:
        raise ConfigError(f"no run name starts with any of {list(names)}; `list` shows all runs")
    return [run for run in runs if not (out / run.path).is_file()]
