"""Config: the environment to train on with SkyRL, and the check of SkyRL's own settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gem_core.adapter_kit.declaration import require
from gem_core.adapter_kit.settings import few_samples, few_seeds, fixed, long_turns, reject
from gem_core.errors import ConfigError
from gem_core.policies.base import warn_if_cut
from gem_core.training.config import TrainingConfig
from gem_core.types import Sampling, Task
from gem_skyrl import ADAPTER

__all__ = ["ESTIMATOR", "GemConfig", "check_settings", "skyrl_config"]

ESTIMATOR = "gem"
"""The value of `trainer.algorithm.advantage_estimator`; `GemConfig.advantage` names gem's own."""
_REMEDIES = {
    "data.train_data": "set GemConfig(seeds=...)",
    "data.val_data": "set GemConfig(eval_seeds=...)",
    "environment": "GemConfig(env_id) names the environment",
    "generator.max_turns": "set GemConfig(horizon=...)",
    "generator.batched": "gem plays all episodes of a batch at the same time",
    "generator.chat_template": "change the chat template of the model's tokenizer",
    "generator.chat_template_kwargs": "set GemConfig(template_kwargs=...)",
    "generator.use_conversation_multi_turn": "set GemConfig(history=...)",
    "generator.append_eos_token_after_stop_str_in_multi_turn": "gem keeps the sampled ids",
    "generator.zero_reward_on_non_stop": "set GemConfig(on_cut='mask')",
    "generator.apply_overlong_filtering": "set GemConfig(on_cut='mask')",
    "generator.vision_language_generator": "gem plays text environments",
    "generator.merge_stepwise_output": "gem's sequences are already merged",
    "generator.step_wise_trajectories": "an episode may have several sequences",
    "generator.sampling_params.logprobs=None": "set it to 1: gem compares logprobs",
    "generator.eval_sampling_params.logprobs=None": "set it to 1: gem compares logprobs",
    "generator.inference_engine.enable_return_routed_experts": "gem does not replay routing",
    "generator.inference_engine.enable_return_sample_support_set": "gem does not replay supports",
    "trainer.fully_async.simulate_training": "nothing would be trained; remove it",
    "trainer.algorithm.advantage_estimator": "set GemConfig(advantage=...)",
    "trainer.algorithm.gamma": "set GemConfig(gamma=...)",
    "trainer.algorithm.lambd": "set GemConfig(estimator_kwargs={'lam': ...})",
    "trainer.algorithm.grpo_norm_by_std": "set GemConfig(estimator_kwargs={'scale': False})",
    "trainer.algorithm.use_kl_in_reward": "set use_kl_loss=true for KL in the loss",
    "trainer.algorithm.advantage_batch_normalize": "set GemConfig(advantage='rebn')",
    "trainer.algorithm.zero_variance_filter": "it drops episodes by SkyRL's own rewards",
    "trainer.algorithm.dynamic_sampling.type": "it drops episodes by SkyRL's own rewards",
    "trainer.algorithm.policy_loss_type=gspo": "it has one ratio per sequence; use regular",
    "trainer.algorithm.policy_loss_type=cross_entropy": "it ignores advantages; use regular",
    "trainer.algorithm.off_policy_correction.sequence_mask_metric=product": "use geometric",
    "trainer.algorithm.off_policy_correction.tis_ratio_type=sequence": "mixes turns; use token",
}
"""SkyRL settings, or values of them, that gem ignores or that change its advantages."""


@dataclass
class GemConfig(TrainingConfig):
    """Training configuration for SkyRL. SkyRL plays each seed `n_samples_per_prompt` times."""

    adapter = ADAPTER

    def task_of(self, extras: Mapping[str, Any], index: int = 0) -> Task:
        """Return the task of a prompt's `env_extras`, such as `{"seed": 7}`."""
        if "seed" not in extras:
            raise ConfigError(f"a prompt has no seed; use gem_skyrl.GemExp. Got {dict(extras)}")
        return self.task(int(extras["seed"]), index)


def skyrl_config(config: GemConfig, settings: Sequence[str] = ()) -> Any:
    """Return SkyRL's config with gem's own settings, which those in `settings` override."""
    from skyrl.train.config import SkyRLTrainConfig

    own = [
        f"trainer.algorithm.advantage_estimator={ESTIMATOR}",
        "data.dataloader.num_workers=0",  # SkyRL would start 8 processes in every epoch
        "environment.env_class=gem",
        "generator.max_turns=0",  # with 1, SkyRL requires max_input_length=max_prompt_length
        "generator.step_wise_trajectories=true",
        *([] if config.held_out_seeds else ["trainer.eval_interval=-1"]),
    ]
    return SkyRLTrainConfig.from_cli_overrides([*own, *settings])


def check_settings(settings: Any, config: GemConfig) -> None:
    """Raise one `ConfigError` that lists every setting of a `SkyRLTrainConfig` gem rejects."""
    require(ADAPTER)
    trainer, generator = settings.trainer, settings.generator
    sampling, remedies = generator.sampling_params, dict(_REMEDIES)
    if config.needs_values:
        remedies["trainer.critic.model.path=None"] = "the estimator needs a critic; set it"
    else:
        remedies["trainer.critic.model.path"] = "the estimator uses no critic; remove it"
    if not config.held_out_seeds:
        remedies["trainer.eval_interval"] = "set GemConfig(eval_seeds=...)"
    rejections = [
        *fixed(settings, skyrl_config(config), remedies),
        few_samples(config, generator.n_samples_per_prompt, "generator.n_samples_per_prompt"),
        long_turns(config, sampling.max_generate_length, "max_generate_length", "one turn"),
        few_seeds(len(config.train_seeds), trainer.train_batch_size, "trainer.train_batch_size"),
    ]
    reject(rejections)
    warn_if_cut(Sampling(top_p=sampling.top_p, top_k=max(int(sampling.top_k), 0)))
