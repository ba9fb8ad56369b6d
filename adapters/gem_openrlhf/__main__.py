"""Train with OpenRLHF's `train_ppo_ray` and gem's environments.

    python -m gem_openrlhf --gem.env_id game:GuessTheNumber-v0-easy --gem.seeds 4096 --gem.gamma 0.9 \\
        --actor.model_name_or_path Qwen/Qwen3-0.6B --vllm.num_engines 1 --algo.kl.init_coef 0 ...

`--gem.NAME` sets the field NAME of `GemConfig`: text and numbers as they are, everything else as JSON. The data set of the
config is written to `--gem.data` (default: gem_data.jsonl), and the seeds to evaluate on beside it. Without `--gem.env_id`, set
`--data.prompt_dataset` to a file that `gem_openrlhf.write_dataset` wrote. All other flags are OpenRLHF's:
`python -m openrlhf.cli.train_ppo_ray --help` lists them.
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
    """(the config of the `--gem.` flags, OpenRLHF's flags, the path of the data set): the arguments of `train`."""
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
    kinds = {field.name: str(field.type).split(" | ") for field in fields(GemConfig)}
    # from_dict rejects a name that is not among them
    if text[:1] not in "[{" and any(
        kind == "str" or kind.startswith("Literal") for kind in kinds.get(name, ["str"])
    ):
        return text
    try:
        return json.loads(text)
    except ValueError:
        raise ConfigError(
            f"--gem.{name} takes a number, or JSON such as '[1, 2]'; given: {text!r}"
        ) from None


if __name__ == "__main__":
    main()
