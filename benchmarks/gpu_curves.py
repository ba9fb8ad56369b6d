"""Run the trainers' recipes with equal settings on one GPU, for docs/gpu.md.

    python benchmarks/gpu_curves.py model runs/start                  # the model of all runs
    python benchmarks/gpu_curves.py run runs/start trl:0 verl:0       # one after the other
    python benchmarks/gpu_curves.py run runs/start trl:1 verl:1 --together

A run is TRAINER:SEED; RL2's engine draws a seed of its own. Most trainers need an environment of
their own: `--python verl=PATH` names its interpreter, or a script that sets variables and starts
it. The metrics of each run go to benchmarks/results/gpu, as by `gpu_runs.py`. Runs that
are made --together have no times in the report.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_runs import Collect, collect, kept_run

from gem_core import GemError
from gem_core.errors import ConfigError
from gem_core.policies.models import load_model, model_path
from gem_core.training.warm_up import warm_up

ROOT = Path(__file__).parents[1]
ENV = "game:GuessTheNumber-v0-easy"
EQUAL = ["--episodes", "256", "--seeds", "128", "--learning-rate", "3e-5"]
"""The settings of every recipe."""
RECIPES = {
    "engine": ["benchmarks/engine_curve.py"],
    "trl": ["benchmarks/trl_stages.py", "--vllm"],
    "verl": ["examples/verl_guess_the_number.py"],
    "openrlhf": ["examples/openrlhf_guess_the_number.py", "--colocate"],
    "rl2": ["-m", "rl2_on_vllm", "examples/rl2_guess_the_number.py"],
    "skyrl": ["examples/skyrl_guess_the_number.py"],
}
SMALLER = {
    "trl": ["--micro-batch", "64"],
    "verl": ["--micro-batch-tokens", "4096"],
    "openrlhf": ["--micro-batch", "32"],
    "rl2": ["--max-length", "8192"],
    "skyrl": ["--micro-batch", "32"],
}
"""Settings of runs that share the memory of the GPU. They do not change the gradient."""
COLLECT = "python benchmarks/gpu_runs.py"


@dataclass
class Plan:
    """Runs to make."""

    model: str
    runs: Sequence[tuple[str, int]]
    out: Path
    updates: int = 25
    together: bool = False
    seconds: float | None = None
    """The time after which runs are stopped. The updates that a recipe has written are kept; the
    plain engine writes them at its end."""
    pythons: dict[str, str] = field(default_factory=dict)

    def command(self, trainer: str, seed: int) -> list[str]:
        """Return the command of a run."""
        start = [self.pythons.get(trainer, sys.executable), *RECIPES[trainer]]
        end = ["--updates", str(self.updates), "--out", str(self.folder(trainer, seed))]
        if trainer == "engine":
            return [*start, self.model, *EQUAL, "--seed", str(seed), *end]
        # RL2's engine seeds its own sampling; the recipe's --seed chooses the tasks
        own = [] if trainer == "rl2" else ["--seed", str(seed)]
        smaller = SMALLER[trainer] if self.together else []
        return [*start, "--model", self.model, *EQUAL, *own, *smaller, *end]

    def folder(self, trainer: str, seed: int) -> Path:
        """Return the output folder of a run."""
        return self.out / f"{trainer}-{seed}"


def run(plan: Plan) -> list[str]:
    """Make all runs and keep their metrics; return the names of those that failed."""
    if plan.updates < 1 or (plan.seconds is not None and plan.seconds <= 0):
        raise ConfigError("--updates must be at least 1, and --seconds more than 0")
    if plan.together and sum(trainer == "skyrl" for trainer, _ in plan.runs) > 1:
        raise ConfigError(
            "two runs of SkyRL that start at the same time use the same port; give one of them, or "
            "omit --together"
        )
    for trainer, seed in plan.runs:
        if plan.runs.count((trainer, seed)) > 1:
            raise ConfigError(f"{trainer}:{seed} is given twice")
        for folder in (plan.folder(trainer, seed), kept_run(trainer, seed)):
            if folder.exists():
                raise ConfigError(f"{folder} exists already; remove it, or choose another seed")
    deadline = time.monotonic() + (plan.seconds or float("inf"))
    groups = [list(plan.runs)] if plan.together else [[one] for one in plan.runs]
    failed = []
    for group in groups:
        if time.monotonic() < deadline:
            failed += _run_group(plan, group, deadline)
        else:
            print("not started, because the time is over:", *(f"{t}:{s}" for t, s in group))
    return failed


def _run_group(plan: Plan, group: Sequence[tuple[str, int]], deadline: float) -> list[str]:
    """Make runs at the same time."""
    processes: dict[tuple[str, int], subprocess.Popen[bytes]] = {}
    failed = []
    try:
        with gpu_samples(None if plan.together else plan.folder(*group[0]) / "gpu.csv"):
            for trainer, seed in group:
                processes[trainer, seed] = _start(plan, trainer, seed)
            _wait(processes.values(), deadline)
    finally:  # also after Ctrl-C
        stopped = _stop(list(processes.values()))
        for (trainer, seed), process in processes.items():
            name, folder = f"{trainer}:{seed}", plan.folder(trainer, seed)
            metrics = folder / "metrics.jsonl"
            written = metrics.exists() and metrics.stat().st_size
            if process.returncode and process not in stopped:
                failed.append(name)
                print(f"{name} ended with status {process.returncode}; see {folder}/log.txt")
                if written:
                    options = f" --model={digest_of(plan.model)}"
                    options += "" if plan.together else " --alone"
                    print(f"to keep its updates: {COLLECT} {folder} {trainer} {seed}{options}")
            elif written:
                collect(Collect(folder, trainer, seed, not plan.together, digest_of(plan.model)))
            else:
                print(f"{name} wrote no metrics; see {folder}/log.txt")
    return failed


def _start(plan: Plan, trainer: str, seed: int) -> subprocess.Popen[bytes]:
    folder = plan.folder(trainer, seed)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [str(ROOT / name) for name in (".", "plugins", "adapters", "tests/adapters/rl2")]
    variables = {**os.environ, "RAY_ADDRESS": "local"}  # a Ray cluster of its own
    variables["PYTHONPATH"] = os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])
    with (folder / "log.txt").open("wb") as log:
        return subprocess.Popen(
            plan.command(trainer, seed),
            cwd=ROOT,
            env=variables,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _wait(processes: Iterable[subprocess.Popen[bytes]], deadline: float) -> None:
    """Wait until all have ended, or until the deadline."""
    for process in processes:
        left = deadline - time.monotonic()
        with suppress(subprocess.TimeoutExpired):
            process.wait(None if left == float("inf") else max(left, 0))


def _stop(processes: Sequence[subprocess.Popen[bytes]]) -> list[subprocess.Popen[bytes]]:
    """End runs and what they started: as by Ctrl-C, after 20 s by force. Return those that ran."""
    running = [process for process in processes if process.poll() is None]
    for process in running:
        os.killpg(process.pid, signal.SIGINT)
    _wait(running, time.monotonic() + 20)
    for process in processes:
        with suppress(ProcessLookupError):  # no process of the run is left
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return running


@contextmanager
def gpu_samples(path: Path | None) -> Iterator[None]:
    """Write the utilization and memory of the GPU to `path`, four times a second."""
    if path is None or shutil.which("nvidia-smi") is None:
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    query = "--query-gpu=timestamp,utilization.gpu,memory.used"
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits", "-lms", "250"]
    with path.open("wb") as file:
        sampler = subprocess.Popen(command, stdout=file)
        try:
            yield
        finally:
            sampler.terminate()
            sampler.wait()


def write_model(name: str, folder: Path, updates: int, dtype: str) -> None:
    """Write a model after an SFT warm-up: on the same GPU and software, the same bits."""
    import torch
    from deterministic import deterministic

    with deterministic():
        model, tokenizer = load_model(name, "cuda" if torch.cuda.is_available() else "cpu")
        loss = warm_up(model, tokenizer, ENV, updates=updates)
    model.to(getattr(torch, dtype)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    # RL2 has transformers 4, which does not read two fields that version 5 writes
    with _edited(folder / "config.json") as config:
        config.setdefault("rope_theta", config["rope_parameters"]["rope_theta"])
    with _edited(folder / "tokenizer_config.json") as config:
        config["tokenizer_class"] = "PreTrainedTokenizerFast"
    print(f"loss {loss:.3f} after {updates} updates; model {digest_of(folder)} is in {folder}")


def digest_of(model: str | Path) -> str:
    """Return a digest of the weights in a model folder; "" if they are in several files."""
    weights = Path(model) / "model.safetensors"
    return hashlib.sha256(weights.read_bytes()).hexdigest()[:12] if weights.exists() else ""


@contextmanager
def _edited(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the content of a JSON file, and write it again."""
    content = json.loads(path.read_text(encoding="utf-8"))
    yield content
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _run_name(text: str) -> tuple[str, int]:
    trainer, _, seed = text.partition(":")
    if trainer not in RECIPES or not seed.isdecimal():
        names = ", ".join(RECIPES)
        raise argparse.ArgumentTypeError(f"expected TRAINER:SEED, with one of {names}; got {text}")
    return trainer, int(seed)


def _python(text: str) -> tuple[str, str]:
    trainer, _, path = text.partition("=")
    program = shutil.which(path)
    if trainer not in RECIPES or program is None:
        names = ", ".join(RECIPES)
        raise argparse.ArgumentTypeError(
            f"expected TRAINER=PATH, with one of {names} and the path of a program; got {text}"
        )
    return trainer, os.path.abspath(program)  # not resolved: it may be a link into a venv


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True, dest="command")
    model = commands.add_parser("model", help="write the model of all runs")
    model.add_argument("folder", type=Path)
    model.add_argument("--name", default="smollm2", help="the model to warm up (default: smollm2)")
    model.add_argument("--warm-up", type=int, default=10, help="updates of SFT (default: 10)")
    model.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    runs = commands.add_parser("run", help="train")
    runs.add_argument("model", help="the folder of `model`")
    runs.add_argument("runs", nargs="+", type=_run_name, metavar="TRAINER:SEED")
    runs.add_argument("--together", action="store_true", help="make all runs at the same time")
    runs.add_argument("--updates", type=int, default=25, help="updates of each run (default: 25)")
    runs.add_argument("--seconds", type=float, help="stop the runs after this time")
    runs.add_argument("--out", type=Path, default=Path("runs/gpu"), help="output folder")
    runs.add_argument(
        "--python",
        action="append",
        type=_python,
        default=[],
        metavar="TRAINER=PATH",
        help="the interpreter of a trainer; give it once per trainer",
    )
    args = parser.parse_args(argv)
    if args.command == "model":
        write_model(args.name, args.folder, args.warm_up, args.dtype)
        return 0
    pythons = dict(args.python)
    out, limits = args.out.absolute(), (args.updates, args.together, args.seconds)
    model_folder = Path(model_path(args.model)).absolute()
    if not (model_folder / "config.json").is_file():
        raise ConfigError(f"{args.model} is not a model folder; `gpu_curves.py model` writes one")
    failed = run(Plan(str(model_folder), args.runs, out, *limits, pythons))
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (GemError, OSError) as error:
        sys.exit(f"error: {error}")
