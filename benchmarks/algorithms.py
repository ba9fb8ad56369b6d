"""Compare REINFORCE, ReBN, GRPO, PPO and others on equal budgets, with one small model on one GPU.

    python benchmarks/algorithms.py list                     # all runs, and which are done
    python benchmarks/algorithms.py warm-up --model smollm2   # SFT warm-up: the model of all runs
    python benchmarks/algorithms.py run tuning/ --workers 8 --room 32000  # eight at once
    python benchmarks/algorithms.py run --workers 8 --room 32000  # all that are not done
    python benchmarks/algorithms.py run main/ --seconds 500  # some runs; start none after 500 s
    python benchmarks/algorithms.py run speed/ --slots 256 --room 20480  # alone on the GPU
    python benchmarks/algorithms.py report                   # tables, figures of docs/baselines.md
    python benchmarks/algorithms.py reproduce main/GuessTheNumber-v0-easy-rebn    # one cell again

A finished run is one small JSON file in benchmarks/results/algorithms. Runs with a file are
skipped, so the program can be killed and resumed at any time, also on another machine. `Run` has
all settings that differ between runs; optimizer and loss are the same. By default, each batch gets
one on-policy gradient step:

    loss = -1/Z * sum over sampled tokens of A * log pi,    Z = number of sampled tokens

So PPO's ratio is 1, and PPO differs by its critic: a second model with a value at the start of
every turn, GAE over turns, and whitened advantages. No algorithm has a KL term or an entropy bonus.
Models compute in bfloat16, the optimizer in float32.

Processes only share a GPU well with NVIDIA MPS, and if none of them may use all of it:

    nvidia-cuda-mps-control -d
    export CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25

A process keeps the memory of the CUDA graphs of its micro-batches, 10 GB or more with 4,000 tokens.
On an H200, eight processes with --room 32000 fit; twelve with the same share ran out of memory. The
lanes of a process take turns in Python and in training: eight processes with one lane were faster
there than three with three lanes (`seconds` in the result files of studies/algorithms/). With
several lanes, the sampling is not seeded.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from algorithms_model import ROOM, fingerprint, load
from algorithms_plan import (
    LONG,
    RESULTS,
    SETTINGS,
    TOOLS,
    Run,
    chosen_updates,
    missing_runs,
    plan,
    selected_runs,
    tuned,
)
from algorithms_training import CONTEXT
from algorithms_warm_up import warm_up
from algorithms_workers import Workers, train_all
from packed import check_model

from gem_core import GemError
from gem_core.errors import ConfigError

DATA = Path(__file__).parents[1] / "plugins" / "gem_envs" / "data"


def prepare(work: Path) -> None:
    """Write the problems of the runs with tools.

    They are products of two numbers, and facts about an invented country with their corpus.
    """
    from gem_tools.search import Index

    work.mkdir(parents=True, exist_ok=True)
    pairs = [(a, b) for a in range(11, 100) for b in range(11, a + 1)]
    random.Random(0).shuffle(pairs)
    problems = [{"problem": f"What is {a} * {b}?", "answer": str(a * b)} for a, b in pairs]
    facts = [
        json.loads(line)
        for line in (DATA / "sample_search.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    single = [fact for fact in facts if fact["hops"] == 1]
    for name, rows in (
        ("products", problems[512:]),
        ("products_eval", problems[:512]),
        ("facts", single[:36]),
        ("facts_eval", single[36:]),
    ):
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (work / f"{name}.jsonl").write_text(text, encoding="utf-8")
    if not (work / "index" / "index.json").is_file():
        Index.build(DATA / "sample_search_corpus.jsonl", work / "index")


def fix_hash_seed() -> None:
    """Start the program again with PYTHONHASHSEED=0.

    The tasks of generators such as rg:isomorphic_strings depend on it: without a fixed value, the
    SFT warm-up gives other weights, and two workers evaluate on different tasks.
    """
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def main(
    argv: Sequence[str] | None = None,
    *,
    about: str | None = __doc__,
    planned: Sequence[Run] | None = None,
    results: Path = RESULTS,
    only_commands: Sequence[str] = (),
    reporter: str = "algorithms_report",
    work: Path = Path("runs/algorithms"),
) -> int:
    """Run a command on these planned runs; by default, on those of `algorithms_plan.py`.

    `reporter` is the module whose `report` writes the tables and figures. `work` is the default of
    --work.
    """
    planned = plan() if planned is None else planned
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, help_text in (
        ("list", "list the runs, and which are done"),
        ("warm-up", "make the model of all runs by SFT warm-up"),
        ("run", "run all that are not done"),
        ("report", "write the tables and figures"),
        ("reproduce", "run some again, and compare them with the recorded results"),
    ):
        if only_commands and name not in only_commands:
            continue
        command = commands.add_parser(name, help=help_text)
        command.add_argument("--out", type=Path, default=results, help="folder of the results")
        if name in ("list", "run"):
            command.add_argument(
                "only", nargs="*", help="cells, or beginnings of run names such as main/"
            )
        if name == "reproduce":
            command.add_argument(
                "only",
                nargs="+",
                help="cells such as main/Hangman-v0-easy-grpo, or runs such as that with -0",
            )
        if name in ("warm-up", "run", "reproduce"):
            command.add_argument(
                "--work",
                type=Path,
                default=work,
                help="folder for the model and problems",
            )
        if name in ("warm-up", "reproduce"):
            command.add_argument(
                "--model", default="smollm2", help="'tiny', 'smollm2' or a model folder"
            )
            command.add_argument("--updates", type=int, default=120)
            command.add_argument("--count", type=int, default=48, help="episodes per environment")
        if name == "run":
            command.add_argument(
                "--model", type=Path, help="model folder; default: the folder model in --work"
            )
        if name in ("run", "reproduce"):
            command.add_argument(
                "--workers", type=int, default=1, help="processes that share the GPU"
            )
            command.add_argument(
                "--lanes", type=int, default=1, help="runs at a time in each process"
            )
            command.add_argument(
                "--slots", type=int, default=128, help="concurrent episodes per run"
            )
            command.add_argument(
                "--room",
                type=int,
                default=ROOM,
                help="tokens in the micro-batches of all processes",
            )
            command.add_argument(
                "--context", type=int, default=CONTEXT, help="tokens of an episode"
            )
            command.add_argument(
                "--seconds", type=float, default=float("inf"), help="start no run after this time"
            )
    args = parser.parse_args(argv)
    if args.command == "report":
        # training needs neither the reports nor what they draw with
        import_module(reporter).report(args.out)
        return 0
    if args.command == "list":
        missing = {run.name for run in missing_runs(args.only, args.out, planned)}
        for run in selected_runs(args.only, planned):
            print(f"{'-' if run.name in missing else 'done':5}{run.name}")
        return 0
    for name in ("updates", "count", "workers", "lanes", "slots", "room", "context"):
        if getattr(args, name, 1) < 1:
            raise ConfigError(f"--{name} must be 1 or more; got {getattr(args, name)}")
    if getattr(args, "room", ROOM) < getattr(args, "workers", 1):
        raise ConfigError(f"--room must be --workers or more; got {args.room} and {args.workers}")
    folder = args.work / "model"
    if args.command == "warm-up":
        make_model(args, planned)
        return 0
    results = args.out
    if args.command == "reproduce":
        results = args.work / "reproduced"
        # raises for an unknown name before anything is trained
        missing_runs(args.only, results, planned)
        if not (folder / "config.json").is_file():
            make_model(args, planned)
    elif args.model is not None:
        folder = args.model
    # raises for an unknown name before the model is read
    missing_runs(args.only, results, planned)
    if not (folder / "config.json").is_file():
        first = selected_runs(args.only, planned)[0]
        raise ConfigError(
            f"no model in {folder}; {first.name} starts from {_described(first.gguf_sha256)}; "
            "make it first, or pass its folder with --model"
        )
    planned = runs_of_model(folder, args.only, planned)
    todo = missing_runs(args.only, results, planned)
    timed = [run.name for run in todo if run.timed]
    studies = {name.partition("/")[0] for name in timed}
    if args.workers * args.lanes > 1 and timed and (len(timed) < len(todo) or len(studies) > 1):
        raise ConfigError(
            f"the time of {timed[0]} is a result, so other runs must not share the GPU with it; "
            "name the runs, or set --workers 1 and --lanes 1"
        )
    if args.lanes > 1 and timed:
        raise ConfigError(
            f"the time of {timed[0]} is a result, so it must not share its process; set --lanes 1"
        )
    scenario = next((run.name for run in todo if run.expert_updates or run.expert_pilot), None)
    if args.lanes > 1 and scenario is not None:
        raise ConfigError(
            f"the SFT of {scenario} would block the other runs of its process; name other runs, "
            "or set --lanes 1"
        )
    if any(run.updates and run.rate is None for run in todo):
        rates = tuned(args.out, planned)
        todo = [
            replace(run, rate=rates.get(run.algorithm, rates["rebn"]))
            if run.updates and run.rate is None
            else run
            for run in todo
        ]
    todo = [
        replace(run, expert_updates=chosen_updates(args.out, run.expert_pilot, planned))
        if run.expert_pilot
        else run
        for run in todo
    ]
    prepare(args.work)
    sizes = (args.workers, args.lanes, args.slots, args.room, args.context)
    code = train_all(
        todo, Workers(folder, args.work, results, *sizes, deadline=time.time() + args.seconds)
    )
    if args.command == "reproduce" and code == 0:
        from algorithms_reproduce import compared

        names = [run.name for run in selected_runs(args.only, planned)]
        print(compared(names, args.out, results))
    return code


def make_model(args: argparse.Namespace, planned: Sequence[Run]) -> None:
    """Make the model that all runs start from."""
    prepare(args.work)
    model, tokenizer = load(args.model)
    with_tools = [replace(s, tools=tools) for s, used in TOOLS.values() for tools in ("", used)]
    settings = [*SETTINGS, LONG, *with_tools]
    known = {setting.env for setting in settings}
    others = {
        run.setting.env: run.setting
        for run in planned
        if run.warm_up and run.setting.env not in known
    }
    settings = [setting.in_folder(args.work) for setting in (*settings, *others.values())]
    began = time.time()
    loss = warm_up(model, tokenizer, settings, args.updates, args.count)
    folder = args.work / "model"
    vars(model.config).pop("gguf_sha256", None)  # no longer the model of that file
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    seconds = time.time() - began
    print(f"loss {loss:.3f}, {seconds:.0f} s; the model ({fingerprint(model)}) is in {folder}")


def runs_of_model(folder: Path, names: Sequence[str], planned: Sequence[Run]) -> list[Run]:
    """Return the planned runs that start from the model in a folder.

    Raises `ConfigError` if the engine does not support the model, or if the names select a run that
    starts from another one.
    """
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder)
    check_model(config)
    own = getattr(config, "gguf_sha256", "")
    other = next((r for r in selected_runs(names, planned) if r.gguf_sha256 != own), None)
    if names and other is not None:
        raise ConfigError(
            f"{other.name} starts from {_described(other.gguf_sha256)}, but {folder} has "
            f"{_described(own)}; pass the folder of its model with --model"
        )
    return [run for run in planned if run.gguf_sha256 == own]


def _described(gguf_sha256: str) -> str:
    if not gguf_sha256:
        return "the model of the SFT warm-up, which `warm-up` makes"
    return f"the model of the GGUF file {gguf_sha256[:12]}, which larger_model.py makes"


if __name__ == "__main__":
    fix_hash_seed()
    try:
        sys.exit(main())
    except (GemError, OSError) as error:
        sys.exit(f"error: {error}")
