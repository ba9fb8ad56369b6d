"""Settings: checks of a trainer's own settings that report all problems at once."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any

from gem_core.errors import ConfigError
from gem_core.training.config import TrainingConfig

__all__ = [
    "Rejection",
    "few_samples",
    "few_seeds",
    "fixed",
    "long_turns",
    "model_context",
    "reject",
    "too_small",
    "unknown_fields",
    "warn_if_tied",
]

Rejection = tuple[Any, str]
"""(condition, message): a true condition rejects the settings; the message has the remedy."""


def reject(rejections: Iterable[Rejection]) -> None:
    """Raise one `ConfigError` with the messages of all rejections whose condition is true."""
    messages = [message for condition, message in rejections if condition]
    if len(messages) == 1:
        raise ConfigError(messages[0])
    if messages:
        raise ConfigError(
            f"{len(messages)} settings are rejected:"
            + "".join(f"\n- {message}" for message in messages)
        )


def too_small(setting: str, value: Any, least: int) -> Rejection:
    """Reject a setting that is not a whole number of at least `least`."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    return (
        not whole or value < least,
        f"{setting} must be a whole number of at least {least}, got {value!r}",
    )


def unknown_fields(setting: str, value: Mapping[str, Any], known: Iterable[str]) -> Rejection:
    """Reject a setting with other keys than the known ones."""
    known = list(known)
    unknown = [str(name) for name in value if name not in known]
    return (
        bool(unknown),
        f"{setting} has unknown fields: {', '.join(unknown)}; "
        f"known fields: {', '.join(known) or 'none'}",
    )


def few_samples(config: TrainingConfig, samples: int, setting: str) -> Rejection:
    """Reject fewer than two episodes per seed (the trainer's `setting`) for a group estimator."""
    return (
        config.needs_groups and samples < 2,
        f"the estimator {config.advantage!r} compares episodes of one seed, "
        f"but {setting} is {samples}; set it to 2 or more, or use 'rebn'",
    )


def long_turns(
    config: TrainingConfig,
    longest: int | None,
    setting: str,
    limits: str = "everything after the prompt",
) -> Rejection:
    """Reject a `max_turn_tokens` above a limit of the trainer, and a limit of None.

    `limits`: what it applies to.
    """
    if longest is None:
        return True, f"{setting}=None does not limit {limits}; set it to a number of tokens"
    return (
        config.max_turn_tokens is not None and config.max_turn_tokens > longest,
        f"max_turn_tokens={config.max_turn_tokens} is above {setting}={longest}, "
        f"which limits {limits}; increase {setting}",
    )


def few_seeds(seeds: int, batch: int, setting: str) -> Rejection:
    """Reject a batch of prompts (the trainer's `setting`) above the number of seeds."""
    return (
        seeds < batch,
        f"{setting}={batch} is above the number of seeds, {seeds}, so no batch would be full; "
        "set GemConfig(seeds=...) or a smaller batch",
    )


def fixed(settings: Any, expected: Any, remedies: Mapping[str, str]) -> list[Rejection]:
    """Reject settings that differ from `expected`, which the adapter ignores or cannot support.

    `remedies`: what to do instead, by the dotted name of the setting, or by `name=value` to reject
    only that value. A name that this version of the trainer does not have is skipped.
    """
    rejections = []
    for key, remedy in remedies.items():
        name, _, rejected = key.partition("=")
        value, own = (_setting(each, name) for each in (settings, expected))
        wrong = str(value) == rejected if rejected else value != own
        rejections.append((wrong, f"{name}={value} is not supported: {remedy}"))
    return rejections


def _setting(settings: Any, name: str) -> Any:
    """Return a setting by its dotted name; None if there is none."""
    return reduce(lambda value, part: getattr(value, part, None), name.split("."), settings)


def model_context(model_config: Any) -> int | None:
    """Return the context length in a transformers model config; None if it has none."""
    text_config = (
        model_config.get_text_config() if hasattr(model_config, "get_text_config") else model_config
    )
    length = getattr(text_config, "max_position_embeddings", None)
    return int(length) if length else None


def warn_if_tied(model_config: Any, trainer: str) -> None:
    """Warn if a model shares the weights of embeddings and output layer, which the trainer splits.

    The inference engine keeps one weight for both, so the two models differ after the first update.
    """
    if getattr(model_config, "tie_word_embeddings", False):
        warnings.warn(
            f"the model ties its output layer to its embeddings, but {trainer} trains them apart "
            "and its inference engine does not: see gem/logprob_gap. "
            "gem_core.policies.models.save_untied(model, folder) saves a copy without the tie",
            stacklevel=3,
        )
