"""Train with verl, OpenRLHF and RL2 on uneven step times, each in its own modes.

    python benchmarks/async_frameworks.py list
    python benchmarks/async_frameworks.py run verl-sync-0 verl-async-0 --model FOLDER   # one GPU
    python benchmarks/async_frameworks.py run openrlhf-sync-0 --cpu                     # tiny model

It runs the recipes in examples/ on `uneven.py`. Run each framework in its own environment, from a
checkout; on a CPU, the mocks of the adapter tests replace what needs a GPU. A finished run is one
JSON file in benchmarks/results/studies/async/frameworks.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from studies_plan import RESULTS

from gem_core import GemError
from gem_core.errors import ConfigError
from gem_core.training.metrics_file import read_metrics

__all__ = ["FRAMEWORK_RESULTS", "FrameworkRun", "framework_plan"]

ROOT = Path(__file__).parents[1]
FRAMEWORK_RESULTS = RESULTS / "async" / "frameworks"
ENV = f"{ROOT / 'benchmarks' / 'uneven.py'}:UnevenGuessTheNumber"
METRICS = ("success", "seconds", "tokens")
ON_CPU = {
    "openrlhf": ("openrlhf_on_cpu", "tests/adapters/openrlhf/cpu"),
    "rl2": ("rl2_on_cpu", "tests/adapters/rl2"),
}
"""Module that runs a program with a framework's mocks, and the folder of the mocks."""


@dataclass(frozen=True)
class FrameworkRun:
    """One training with a framework: 64 episodes per update, one optimizer step each."""

    framework: str
    mode: str
    seed: int
    updates: int
    rate: float
    model: str
    episodes: int = 64

    @property
    def name(self) -> str:
        return f"{self.framework}-{self.mode}-{self.seed}"

    @property
    def path(self) -> Path:
        return FRAMEWORK_RESULTS / f"{self.name}.json"


def framework_plan() -> list[FrameworkRun]:
    """Return all runs, the first seeds first."""
    return [
        run
        for seed in range(2)
        for run in (
            FrameworkRun("rl2", "sync", seed, 30, 5e-4, "tiny"),
            FrameworkRun("openrlhf", "sync", seed, 30, 5e-4, "tiny"),
            FrameworkRun("openrlhf", "async", seed, 30, 5e-4, "tiny"),
            FrameworkRun("verl", "sync", seed, 50, 3e-5, "smollm2"),
            FrameworkRun("verl", "async", seed, 50, 3e-5, "smollm2"),
        )
    ]


def recipe_settings(run: FrameworkRun, model: str, out: Path) -> dict[str, Any]:
    """Return the arguments of the framework's recipe."""
    settings: dict[str, Any] = {
        "model": model,
        "env": ENV,
        "seed": run.seed,
        "seeds": run.updates * run.episodes,  # each once
        "updates": run.updates,
        "episodes": run.episodes,
        "samples": 1,
        "max_turn_tokens": 16,
        "learning_rate": run.rate,
        "out": str(out),
    }
    if run.framework == "rl2":
        settings["max_length"] = 2048
    if run.framework == "openrlhf":
        settings |= {"micro_batch": 32, "asynchronous": run.mode == "async"}
        settings["correction"] = "token" if run.mode == "async" else "off"
    return settings


def train(run: FrameworkRun, model: str, out: Path, cpu: bool) -> None:
    """Run the recipe; its metrics are in `out`."""
    recipe = ROOT / "examples" / f"{run.framework}_guess_the_number.py"
    settings = recipe_settings(run, model, out)
    if run.framework == "verl":
        _train_verl(recipe, settings, f"gem_{'colocate_async' if run.mode == 'async' else 'sync'}")
        return
    flags = []
    for name, value in settings.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            flags.append(flag)
        elif value is not False:
            flags += [flag, str(value)]
    command, folders = [sys.executable, str(recipe), *flags], sys.path
    if cpu:
        module, folder = ON_CPU[run.framework]
        command[1:1] = ["-m", module]
        folders = [str(ROOT / folder), str(ROOT / "tests" / "support"), *sys.path]
        if run.framework == "openrlhf":
            command.append("--eager")  # vLLM on a CPU has no graphs
    path = os.pathsep.join(folder for folder in folders if folder)
    subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, cwd=out, check=True)


def _train_verl(recipe: Path, settings: dict[str, Any], mode: str) -> None:
    """Run the recipe in this process: its arguments lack the mode of the trainer."""
    spec = importlib.util.spec_from_file_location("recipe", recipe)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["recipe"] = module
    spec.loader.exec_module(module)
    own = module.train
    module.train = lambda config, more: own(config, [*more, f"trainer.v1.trainer_mode={mode}"])
    module.main(module.Args(**settings))


def save(run: FrameworkRun, out: Path, cpu: bool, seconds: float) -> dict[str, Any]:
    """Write the result file of a finished run and return its content."""
    metrics = read_metrics(out)
    if len(metrics) != run.updates:
        raise ConfigError(f"{run.name} has {len(metrics)} updates; expected {run.updates}")
    result = {
        "run": asdict(run),
        "curve": {name: [line[name] for line in metrics] for name in METRICS},
        "seconds": round(seconds, 1),
        "device": "CPU" if cpu else _gpu(),
        "version": version({"rl2": "rl-square"}.get(run.framework, run.framework)),
    }
    run.path.parent.mkdir(parents=True, exist_ok=True)
    run.path.write_text(json.dumps(result) + "\n", encoding="utf-8")
    return result


def _gpu() -> str:
    import torch

    return torch.cuda.get_device_name()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["list", "run"])
    parser.add_argument("names", nargs="*", help="names of runs")
    parser.add_argument("--model", help="model folder; by default, that of the plan by its name")
    parser.add_argument("--cpu", action="store_true", help="with the mocks of the adapter tests")
    parser.add_argument("--work", type=Path, default=Path("runs/async_frameworks"))
    args = parser.parse_args()
    planned = {run.name: run for run in framework_plan()}
    if args.command == "list":
        for run in planned.values():
            print(f"{'done' if run.path.is_file() else '-':5}{run.name}")
        return
    unknown = [name for name in args.names if name not in planned]
    if unknown or not args.names:
        raise ConfigError(f"expected names of runs: {', '.join(planned)}; got {args.names}")
    for name in args.names:
        run = planned[name]
        if args.cpu and run.framework not in ON_CPU:
            raise ConfigError(f"{name} needs a GPU; run it without --cpu")
        if run.path.is_file():
            print(f"{name} is done")
            continue
        out = (args.work / f"{name}-{int(time.time())}").absolute()
        out.mkdir(parents=True)
        began = time.monotonic()
        train(run, args.model or run.model, out, args.cpu)
        result = save(run, out, args.cpu, time.monotonic() - began)
        print(f"{name}: {result['seconds']:.0f} s, success {result['curve']['success'][-5:]}")


if __name__ == "__main__":
    try:
        main()
    except (GemError, OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"error: {error}")
