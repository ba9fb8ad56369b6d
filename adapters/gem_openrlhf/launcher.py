"""Launcher: starts OpenRLHF's own `train_ppo_ray` with gem's classes; every flag of OpenRLHF's is passed on.

    python -m gem_openrlhf --gem.env_id game:GuessTheNumber-v0-easy --gem.seeds 4096 --gem.gamma 0.9 \\
        --actor.model_name_or_path Qwen/Qwen3-0.6B --vllm.num_engines 1 --algo.kl.init_coef 0 ...

`--gem.NAME` is the field NAME of `GemConfig`: text and numbers as they are, everything else as JSON. The data set they make
goes to `--gem.data` (default: gem_data.jsonl), and the starts to evaluate on beside it. Without `--gem.env_id`, give
`--data.prompt_dataset` what `GemConfig.write` wrote.
"""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

from gem_core.cli.terminal import say
from gem_core.errors import ConfigError, GemError, MissingDependencyError
from gem_openrlhf import ADAPTER
from gem_openrlhf.config import GemConfig

__all__ = ["launch", "parse_flags"]

_AGENT = Path(__file__).with_name("agent.py")


def launch(flags: Sequence[str], spec: GemConfig | None = None, data: str | Path = "gem_data.jsonl") -> None:
    """Trains. `flags`: OpenRLHF's. `spec`: written to `data` and trained on; None where a flag names the data set."""
    try:
        import ray

        from gem_openrlhf.trainer import install
    except ImportError as error:
        raise MissingDependencyError("training with OpenRLHF", ADAPTER.extra, str(error)) from error
    given = list(flags)
    if spec is not None:
        _refuse(given, "--data.prompt_dataset", "the data set is the spec's")
        given += ["--data.prompt_dataset", str(spec.write(Path(data).absolute()))]
        if spec.held_out_seeds:
            _refuse(given, "--eval.dataset", "the starts to evaluate on are the spec's")
            path = Path(data).absolute().with_suffix(".eval.jsonl")
            given += ["--eval.dataset", str(spec.write(path, evaluation=True))]
    for name, value in (
        ("--train.agent_func_path", str(_AGENT)),
        ("--data.input_key", "input"),
        ("--data.label_key", "label"),
        ("--algo.advantage.estimator", "reinforce"),
    ):
        if not _has(given, name):
            given += [name, value]
    install()
    mine, argv = not ray.is_initialized(), sys.argv
    sys.argv = ["train_ppo_ray", *given]
    try:
        # it reads its flags only where it is the program; there is no function to call
        runpy.run_module("openrlhf.cli.train_ppo_ray", run_name="__main__")
    finally:
        sys.argv = argv
        if mine:
            ray.shutdown()


def parse_flags(flags: Sequence[str]) -> tuple[list[str], GemConfig | None, str]:
    """(OpenRLHF's flags, the spec that the `--gem.` flags make, where its data set goes)."""
    rest: list[str] = []
    said: dict[str, str] = {}
    waiting = iter(flags)
    for flag in waiting:
        if not flag.startswith("--gem."):
            rest.append(flag)
            continue
        name, equals, value = flag.removeprefix("--gem.").partition("=")
        if not equals and (value := next(waiting, "")) == "":
            raise ConfigError(f"--gem.{name} needs a value")
        said[name] = value
    data = said.pop("data", "gem_data.jsonl")
    known = [field.name for field in fields(GemConfig)]
    for name in said:
        if name not in known:
            raise ConfigError(f"--gem.{name}: GemConfig has no such field; it has: {', '.join(known)}")
    if said and "env_id" not in said:
        raise ConfigError(f"--gem.{next(iter(said))} says how to play, and nothing says what; give --gem.env_id")
    return rest, GemConfig(**{name: _value(name, text) for name, text in said.items()}) if said else None, data


def _value(name: str, text: str) -> Any:
    kind = get_type_hints(GemConfig)[name]
    if str in (kind, *get_args(kind)) and text[:1] not in "[{":
        return text
    try:
        return json.loads(text)
    except ValueError:
        raise ConfigError(f"--gem.{name} takes a number, or JSON as in '[1, 2]'; given: {text!r}") from None


def _has(flags: Sequence[str], name: str) -> bool:
    return any(flag == name or flag.startswith(f"{name}=") for flag in flags)


def _refuse(flags: Sequence[str], name: str, why: str) -> None:
    if _has(flags, name):
        raise ConfigError(f"{name} is given, and so is a GemConfig: {why}; leave one of them out")


def main() -> None:
    """What `python -m gem_openrlhf` runs."""
    if set(sys.argv[1:]) & {"-h", "--help"}:
        say(f"{__doc__}\nOpenRLHF's own flags: python -m openrlhf.cli.train_ppo_ray --help")
        return
    try:
        launch(*parse_flags(sys.argv[1:]))
    except GemError as error:
        sys.exit(f"error: {error}")
