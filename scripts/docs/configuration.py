"""Configuration page: every field of `GemConfig`, from the classes."""

from __future__ import annotations

from collections.abc import Iterator

from fields import body, cell, fields_of, first_sentence, load, table_of_fields

__all__ = ["page"]

_TRAINERS = {
    "trl": "TRL",
    "verl": "verl",
    "openrlhf": "OpenRLHF",
    "oat": "oat",
    "rl2": "RL2",
    "skyrl": "SkyRL",
    "tinker": "Tinker",
}
_CLASSES = {
    "Limits": "gem_core.rollout.limits:Limits",
    "Sampling": "gem_core.types:Sampling",
    "HorizonSchedule": "gem_core.training.horizon:HorizonSchedule",
}
_HEAD = """# Configuration

Each adapter has a `GemConfig`: the environment to train on, the seeds, the advantage estimator
and the limits of an episode. The fields below are the same in every adapter. Everything else (the
model, the optimizer, the batch size) is a setting of the trainer. An invalid value raises
`ConfigError` before a model is loaded.

`GemConfig.from_dict(data)` reads the same fields from plain data, for example from YAML;
`to_dict()` writes them.

## GemConfig
"""
_ESTIMATORS = """
## Estimators

`advantage` names an estimator: a function from episodes to one number per turn. Every token of
turn t gets the number of its turn.
"""
_WRAPPERS = """
## Wrappers

`wrappers` names any of these, with or without arguments, as in `"boxed(on_error='again')"`. A
plugin adds its own with the hook [`register_wrappers`](hooks.md#register_wrappers).
"""
_METRICS = """
## Metrics

The metrics of each update have the same names in every trainer.
"""
_ENGINE = """
## Settings of the rollout engine

Adapters make them from `GemConfig`; your own loop passes them to `Rollout` or `run_batch`.
"""


def page() -> str:
    """Return the page."""
    parts = [
        _HEAD,
        table_of_fields("gem_core.training.config:TrainingConfig", without=("adapter",)),
        *_fields_of_adapters(),
        _ESTIMATORS,
        body("gem_core.training.advantage"),
        _WRAPPERS,
        _wrappers(),
        _METRICS,
        body("gem_core.adapter_kit.update_log"),
        _ENGINE,
    ]
    for name, path in _CLASSES.items():
        parts.append(f"\n### {name}\n\n{first_sentence(load(path))}\n")
        parts.append(table_of_fields(path))
    return "\n".join(parts) + "\n"


def _fields_of_adapters() -> Iterator[str]:
    yield "\n## Fields of one adapter\n"
    without = []
    for name, title in _TRAINERS.items():
        path = f"gem_{name}.config:GemConfig"
        if not [each for each in fields_of(path) if each.name != "adapter"]:
            without.append(f"[{title}](../trainers/{name}.md)")
            continue
        yield f"\n### gem_{name}.GemConfig\n"
        yield f"The adapter to [{title}](../trainers/{name}.md) adds:\n"
        yield table_of_fields(path, without=("adapter",))
    if without:
        yield f"\nThe adapters to {' and '.join(without)} add no fields."


def _wrappers() -> str:
    from gem_core.env.wrapper_stack import wrappers

    rows = ["| Name | Summary |", "|---|---|"]
    return "\n".join(
        rows + [f"| `{name}` | {cell(each.summary)} |" for name, each in wrappers.all().items()]
    )
