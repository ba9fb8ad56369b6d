"""Train on a gem environment with OpenRLHF's `train_ppo_ray`.

    python -m gem_openrlhf --gem.env_id game:GuessTheNumber-v0-easy --gem.seeds 4096 \\
        --gem.gamma 0.9 --actor.model_name_or_path Qwen/Qwen3-0.6B --vllm.num_engines 1 \\
        --algo.kl.init_coef 0 ...

`--gem.NAME` sets the field NAME of `GemConfig`. Text and numbers are written as they are, all other
values as JSON. The command writes the dataset to `--gem.data` (default: gem_data.jsonl), and the
seeds to evaluate on (`--gem.eval_seeds`, with `--eval.steps`) to a second file beside it. Without
`--gem.` flags, set `--data.prompt_dataset` to a file that `gem_openrlhf.write_dataset` wrote. All
other flags are OpenRLHF's own: `python -m openrlhf.cli.train_ppo_ray --help` lists them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import gem_openrlhf
from gem_core.cli.terminal import say
from gem_core.errors import ConfigError, GemError
from gem_openrlhf.config import GemConfig

__all__ = ["main", "parse_flags"]


def main() -> None:
    """Train with the flags of the command line."""
    if {"-h", "--help"} & set(sys.argv[1:]):
        say(__doc__ or "")
        return
    try:
        gem_openrlhf.train(*parse_flags(sys.argv[1:]))
    except GemError as error:
        sys.exit(f"error: {error}")


def parse_flags(flags: Sequence[str]) -> tuple[GemConfig | None, list[str], str]:
    """Return the arguments of `train`: the config, OpenRLHF's own flags, the path of the dataset.

    The config is None without `--gem.` flags.
    """
    settings: list[str] = []
    values: dict[str, Any] = {}
    remaining = iter(flags)
    for flag in remaining:
        if not flag.startswith("--gem."):
            settings.append(flag)
            continue
        name, equals, text = flag.removeprefix("--gem.").partition("=")
        if not equals and (text := next(remaining, "")) == "":
            raise ConfigError(f"--gem.{name} needs a value")
        values[name] = _value(name, text)
    data = values.pop("data", "gem_data.jsonl")
    return (
        GemConfig.from_dict(values, where="the command line (--gem. flags)") if values else None,
        settings,
        data,
    )


def _value(name: str, text: str) -> Any:
    """Return the value of a flag: text if the field accepts text, otherwise parsed JSON."""
    types = {field.name: str(field.type).split(" | ") for field in fields(GemConfig)}
    # an unknown name passes here: `GemConfig.from_dict` rejects it
    accepts_text = any(
        each == "str" or each.startswith("Literal") for each in types.get(name, ["str"])
    )
    if accepts_text and text[:1] not in "[{":
        return text
    try:
        return json.loads(text)
    except ValueError:
        raise ConfigError(
            f"--gem.{name}: expected a number, or JSON such as '[1, 2]', got {text!r}"
        ) from None


if __name__ == "__main__":
    main()
