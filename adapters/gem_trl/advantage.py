"""Advantage: gem's estimators in place of GRPOTrainer's group advantages, one number per completion token.

TRL computes advantages inside `_generate_and_score_completions` and offers no hook for them; its loss takes a (B, T) tensor
by design. So that one method is overridden: it calls TRL's, then replaces `advantages`. Everything else is TRL's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import gather_object
from trl import GRPOTrainer

from gem_core.errors import ConfigError, GemError
from gem_core.training.metrics import advantage_sizes
from gem_trl.convert import completion, spread
from gem_trl.rollout import GemRollout

if TYPE_CHECKING:
    from gem_trl.config import GemConfig

__all__ = ["GemAdvantages", "GemGRPOTrainer", "MaskLostError", "install_gem_advantages"]


class MaskLostError(GemError, RuntimeError):
    """Raised when what TRL hands to its loss is not what was played: a mask, or ids, went missing on the way."""


class GemAdvantages:
    """Mixin for GRPOTrainer: `class MyTrainer(GemAdvantages, MyGRPOTrainer)`."""

    gem_spec: GemConfig

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.gem_spec = _spec_of(self)
        self.rollout_func.prepare(self)  # type: ignore[attr-defined]

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        out: dict[str, Any] = super()._generate_and_score_completions(inputs)  # type: ignore[misc]
        return put_advantages(self, inputs, out)


class GemGRPOTrainer(GemAdvantages, GRPOTrainer):
    """GRPOTrainer with per-turn advantages by the estimator its `GemConfig` names."""


def install_gem_advantages(trainer: Any) -> Any:
    """The same for a trainer that exists already, of whatever class; returns it."""
    if hasattr(trainer, "gem_spec"):
        raise ConfigError("this trainer has gem's advantages already")
    trainer.gem_spec = _spec_of(trainer)
    try:
        trainer.rollout_func.prepare(trainer)
    except GemError:
        del trainer.gem_spec
        raise
    inner = trainer._generate_and_score_completions

    def generate_and_score(inputs: Any) -> dict[str, Any]:
        return put_advantages(trainer, inputs, inner(inputs))

    trainer._generate_and_score_completions = generate_and_score
    return trainer


def put_advantages(trainer: Any, inputs: Sequence[dict[str, Any]], out: dict[str, Any]) -> dict[str, Any]:
    """Replaces TRL's advantages by gem's: statistics over all ranks, one number per token, 0 where nothing is trained."""
    spec: GemConfig = trainer.gem_spec
    episodes, rows = [i["gem_episode"] for i in inputs], [i["gem_row"] for i in inputs]
    check_batch(out, rows)
    per_turn = spec.credit(episodes, gather=lambda mine: gather_object([mine]))
    found = torch.zeros(out["completion_ids"].shape, dtype=torch.float32, device=out["completion_ids"].device)
    for i, (row, numbers) in enumerate(zip(rows, per_turn)):
        tokens = torch.tensor(spread(row, numbers), dtype=torch.float32, device=found.device)
        found[i, : len(tokens)] = tokens
    out["advantages"] = found
    _log(trainer, per_turn, episodes)
    return out


def check_batch(out: dict[str, Any], rows: Sequence[Any]) -> None:
    """What goes into the loss must be what was played: the ids, and the mask that keeps unsampled tokens out."""
    for key in ("completion_ids", "completion_mask", "tool_mask", "advantages"):
        if key not in out:
            raise MaskLostError(
                f"TRL's batch has no {key!r} (it has {sorted(out)}); this version, or a patch of it, works differently "
                "from those "
                "gem_trl was tested with. Without it the loss would train on the environment's words"
            )
    masks = (out["completion_mask"] * out["tool_mask"]).tolist()
    for number, (row, ids, mask) in enumerate(zip(rows, out["completion_ids"].tolist(), masks)):
        played, trained = completion(row)
        rest = [0] * (len(mask) - len(trained))
        if ids[: len(played)] != played or mask != trained + rest:
            raise MaskLostError(
                f"row {number} of TRL's batch is not what was played: its ids or its mask were changed on the way to the loss, "
                f"which would train on {sum(mask)} tokens where {sum(trained)} were sampled"
            )


def _log(trainer: Any, per_turn: Sequence[Sequence[float]], episodes: Sequence[Any]) -> None:
    mode = "train" if trainer.model.training else "eval"
    everybody = [a for part in gather_object([advantage_sizes(episodes, per_turn)]) for a in part]
    trainer._metrics[mode]["gem/advantage_abs"].append(sum(everybody) / len(everybody) if everybody else 0.0)
    first = [numbers[0] if numbers else 0.0 for numbers in per_turn]
    shown = [a for part in gather_object([first]) for a in part]
    log = trainer._logs["advantages"]
    for _ in range(min(len(shown), len(log))):  # TRL's completions table shows its own; put the first turn's there
        log.pop()
    log.extend(shown)


def _spec_of(trainer: Any) -> GemConfig:
    rollout = getattr(trainer, "rollout_func", None)
    if not isinstance(rollout, GemRollout):
        raise ConfigError(
            "gem's advantages need the episodes of a GemConfig; pass rollout_func=spec.rollout_func (given: "
            f"{type(rollout).__name__})"
        )
    return rollout.spec
