"""Config: the environment to train on with TRL, and the check of TRL's own settings."""

from __future__ import annotations

import inspect
import warnings
from dataclasses import dataclass
from typing import Any

from gem_core.adapter_kit.declaration import require
from gem_core.adapter_kit.settings import Rejection, few_seeds, long_turns, reject, too_small
from gem_core.errors import ConfigError
from gem_core.training.config import TrainingConfig
from gem_core.types import Task
from gem_trl import ADAPTER
from gem_trl.convert import episode_return

__all__ = ["GemConfig", "check_settings", "never_evaluated"]

_ONE_ADVANTAGE_PER_SEQUENCE = {"GMPOTrainer"}
_TOKEN_CAPS = {"max_length", "max_new_tokens", "max_tokens"}


@dataclass
class GemConfig(TrainingConfig):
    """Training configuration for TRL: the environment, its limits and the advantage estimator.

    Each seed becomes one prompt of the dataset, which TRL plays `num_generations` times.
    """

    adapter = ADAPTER

    batch_wait: float = 0.05
    """Seconds that a generation batch waits for episodes whose environment is still busy."""
    lockstep: bool | None = None
    """Whether all ranks call the engine together; None: only if the engine is collective."""
    importance_per_turn: bool = False
    """Whether TRL's correction for vLLM uses one ratio per turn, instead of one per sequence, which
    drops long episodes. Needs a `sequence_*` mode of `vllm_importance_sampling_mode`."""

    def task_of(self, prompt: Any, index: int = 0) -> Task:
        """Return the task of a prompt.

        The prompt carries its seed because TRL passes nothing else to a rollout function.
        """
        message = prompt[-1] if isinstance(prompt, list) and prompt else None
        task = message.get("gem") if isinstance(message, dict) else None
        if not task or "seed" not in task:
            raise ConfigError(
                "a prompt has no gem task; train on trainer_kwargs(config)['train_dataset'], "
                "or add the key 'gem': {'seed': 7} to the last message of each prompt. "
                f"Got: {str(prompt)[:120]}"
            )
        return self.task(int(task["seed"]), index)


def check_settings(settings: Any, config: GemConfig) -> None:
    """Raise one `ConfigError` that lists every TRL setting gem does not support.

    `settings`: the trainer, which holds them.
    """
    require(ADAPTER)
    trainer, name = settings, type(settings).__name__
    args, per_turn = trainer.args, hasattr(trainer, "gem_config")
    weighted = list(zip(trainer.reward_funcs, trainer.reward_weights.tolist()))
    others = [
        getattr(function, "__name__", type(function).__name__)
        for function, weight in weighted
        if function is not episode_return and weight
    ]
    own_weights = [w for function, w in weighted if function is episode_return]
    batch = args.generation_batch_size // args.num_generations
    steps, accumulated = (
        args.steps_per_generation * args.num_iterations,
        args.gradient_accumulation_steps,
    )
    own_caps = sorted(_TOKEN_CAPS & set(getattr(args, "generation_kwargs", None) or {}))
    bases = {base.__name__ for base in type(trainer).__mro__}
    template_kwargs = getattr(args, "chat_template_kwargs", None)
    aggregation = getattr(args, "multi_objective_aggregation", "sum_then_normalize")
    mode = str(getattr(args, "vllm_importance_sampling_mode", ""))
    by_sequence = mode.startswith("sequence")
    corrected = args.use_vllm and getattr(args, "vllm_importance_sampling_correction", False)
    reject(
        [
            (
                args.mask_truncated_completions,
                "mask_truncated_completions=True drops a whole episode if its last turn was cut; "
                "set it to False, and use GemConfig(on_cut='mask') to mask only the cut turn",
            ),
            (
                bool(getattr(trainer, "tools", None))
                or getattr(trainer, "environments", None) is not None,
                "GRPOTrainer(tools=...) and environment_factory make TRL ignore the loss mask of "
                "a rollout function; remove them, and name tools in GemConfig(tools=...)",
            ),
            (
                per_turn and bool(getattr(args, "use_liger_kernel", False)),
                "use_liger_kernel=True is not supported: the loss of TRL 1.10 then takes one "
                "advantage per sequence, and later versions deprecate it; set it to False",
            ),
            (
                per_turn and bool(bases & _ONE_ADVANTAGE_PER_SEQUENCE),
                f"{name} takes one advantage per sequence; use GRPOTrainer for per-turn advantages",
            ),
            (
                per_turn and args.importance_sampling_level != "token",
                f"importance_sampling_level={args.importance_sampling_level!r} gives every token "
                "the mean advantage of its sequence, so turns with opposite advantages cancel; "
                "set it to 'token', or use TRL's GRPOTrainer for one advantage per episode",
            ),
            (
                bool(template_kwargs) and template_kwargs != dict(config.template_kwargs),
                f"chat_template_kwargs={template_kwargs!r} applies to TRL's own prompts only; "
                "remove it, and set GemConfig(template_kwargs=...)",
            ),
            (
                per_turn and args.scale_rewards != "group",
                f"scale_rewards={args.scale_rewards!r} applies to TRL's own advantages only; "
                "remove it, and use GemConfig(advantage='grpo', estimator_kwargs={'scale': False}) "
                "for unscaled advantages",
            ),
            (
                per_turn and bool(others),
                f"per-turn advantages ignore the rewards of {', '.join(others)}: they use the "
                "environment's rewards only; add these rewards in a wrapper around the "
                "environment, or set their reward_weights to 0 to only log them",
            ),
            (
                per_turn and any(weight != 1 for weight in own_weights),
                f"reward_weights={args.reward_weights} scales TRL's own advantages only; set it to "
                "1 for gem's reward, and scale rewards in a wrapper around the environment",
            ),
            (
                per_turn and aggregation != "sum_then_normalize",
                f"multi_objective_aggregation={aggregation!r} applies to TRL's own advantages "
                "only; remove it",
            ),
            too_small("steps_per_generation", args.steps_per_generation, 1),
            too_small("num_iterations", args.num_iterations, 1),
            (
                bool(steps % accumulated),
                f"steps_per_generation * num_iterations = {steps} is not a multiple of "
                f"gradient_accumulation_steps={accumulated}: an optimizer step would train on "
                "several batches of episodes, each with its own weight and statistics; set "
                f"steps_per_generation={accumulated}, TRL's default",
            ),
            (
                bool(own_caps),
                f"generation_kwargs has {', '.join(own_caps)}, which gem sets for every turn; "
                "remove it, and set GemConfig(max_turn_tokens=...)",
            ),
            (
                not _loss_reads_mask(type(trainer)),
                f"the loss of {name} does not read `tool_mask`, so it would train on observation "
                "tokens; use TRL's own GRPOTrainer, or a version of the patch that reads it",
            ),
            (
                not per_turn and (config.history == "template" or bool(config.rewriting_wrapper())),
                f"{name} takes one sequence per episode, but the history is rewritten; use "
                "GemGRPOTrainer, or history='append' without wrappers that rewrite the history",
            ),
            (
                config.importance_per_turn and not (per_turn and corrected and by_sequence),
                "importance_per_turn=True replaces the sequence-level correction for vLLM; use "
                "GemGRPOTrainer with use_vllm=True, vllm_importance_sampling_correction=True and "
                f"vllm_importance_sampling_mode='sequence_mask' (got {mode!r})",
            ),
            (
                config.importance_per_turn and args.loss_type == "vespo",
                "importance_per_turn=True does not work with loss_type='vespo', which multiplies "
                "the ratios of all tokens; set it to False",
            ),
            long_turns(config, args.max_completion_length, "max_completion_length"),
            few_seeds(
                len(trainer.train_dataset) if hasattr(trainer.train_dataset, "__len__") else batch,
                batch,
                "generation_batch_size / num_generations",
            ),
        ]
    )
    if corrected and by_sequence and not config.importance_per_turn:
        warnings.warn(
            f"vllm_importance_sampling_mode={mode!r} multiplies the ratios of all tokens of an "
            "episode, so a long episode is masked or weighted as a whole. Set "
            "GemConfig(importance_per_turn=True) for one ratio per turn, or "
            "vllm_importance_sampling_mode='token_truncate' for one per token.",
            stacklevel=1,  # always this line, so Python shows the warning once per process
        )


def never_evaluated(config: GemConfig, args: Any) -> Rejection:
    """Reject seeds to evaluate on if TRL never evaluates. `args`: GRPOConfig, None for defaults.

    `check_settings` accepts them: `trainer.evaluate()` plays them too.
    """
    evaluates = getattr(args, "eval_strategy", "no") != "no" or getattr(
        args, "eval_on_start", False
    )
    seeds = len(config.held_out_seeds)
    return (
        bool(seeds) and not evaluates,
        f"GemConfig has {seeds} evaluation seeds (eval_seeds), but eval_strategy='no', TRL's "
        "default, never evaluates during training; set eval_strategy='steps' and eval_steps in "
        "GRPOConfig, or remove eval_seeds",
    )


def _loss_reads_mask(trainer_class: type) -> bool:
    """Return whether the loss, or a loss it calls by `super()`, reads the loss mask.

    A loss without source code passes: `check_batch` still checks every batch.
    """
    for base in trainer_class.__mro__:
        if "_compute_loss" in vars(base):
            try:
                source = inspect.getsource(vars(base)["_compute_loss"])
            except (OSError, TypeError):
                return True
            if "tool_mask" in source:
                return True
            if "super()" not in source:
                return False
    return False
