"""Checks: which of verl's settings gem rejects, and what to set instead."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from importlib.resources import files
from importlib.util import find_spec
from typing import Any

from gem_core.adapter_kit.settings import Rejection, few_samples, few_seeds, long_turns, too_small
from gem_core.training.config import TrainingConfig

__all__ = [
    "PREFIX",
    "algorithm_rejections",
    "fixed_micro_batches",
    "has_gem_trainer",
    "one_sequence_reason",
    "rejections",
    "rewrites_history",
]

PREFIX = "gem_"
"""The prefix of gem's estimators and trainers in verl's registries."""
_FLASH = "flash_attention_2"
"""verl's default attention."""
_VALUE_HEAD = "AutoModelForCausalLMWithValueHead"
_KL_LOSS = "set actor_rollout_ref.actor.use_kl_loss=True and its kl_loss_* for KL in the loss"
_ROLLOUT = "actor_rollout_ref.rollout"
_REF = "actor_rollout_ref.ref"
_MICRO_BATCHES = (
    (
        "actor_rollout_ref.actor",
        "use_dynamic_bsz",
        "ppo_micro_batch_size_per_gpu",
        "ppo_max_token_len_per_gpu",
    ),
    *(
        (
            section,
            "log_prob_use_dynamic_bsz",
            "log_prob_micro_batch_size_per_gpu",
            "log_prob_max_token_len_per_gpu",
        )
        for section in (_ROLLOUT, _REF)
    ),
    ("critic", "use_dynamic_bsz", "ppo_micro_batch_size_per_gpu", "ppo_max_token_len_per_gpu"),
)
"""Section, and its settings: whether micro-batches are cut by tokens, their size in sequences, and
their size in tokens."""
_UNUSED = {
    "lam": "applies to verl's own gae; set algorithm.adv_estimator=gem_gae and +algorithm.gem.lam",
    "kl_penalty": f"applies to KL in the reward; remove it, and {_KL_LOSS}",
    "kl_ctrl": f"applies to KL in the reward; remove it, and {_KL_LOSS}",
    "pf_ppo": "applies to use_pf_ppo, which is for verl's own gae; remove it",
    "gdpo_reward_keys": "applies to verl's own gdpo; remove it",
    "gdpo_reward_weights": "applies to verl's own gdpo; remove it",
}
"""Settings under `algorithm` that gem's estimators do not read, and what to do instead."""


def rejections(settings: Any, config: TrainingConfig) -> list[Rejection]:
    """Return the rejections of verl's hydra config."""
    name = str(settings.algorithm.adv_estimator)
    per_turn = name.startswith(PREFIX)
    rollout, actor = settings.actor_rollout_ref.rollout, settings.actor_rollout_ref.actor
    filter_groups = settings.algorithm.get("filter_groups") or {}
    filter_metric = filter_groups.get("metric")
    correction = settings.algorithm.get("rollout_correction") or {}
    corrected = correction.get("rollout_is") or correction.get("bypass_mode")
    rewards, turns = _reward_settings(settings), _turn_settings(rollout.multi_turn)
    template_kwargs = dict(settings.data.get("apply_chat_template_kwargs") or {})
    rewrites, one_sequence = rewrites_history(config), one_sequence_reason(settings, config)
    return [
        few_samples(config, int(rollout.n), "actor_rollout_ref.rollout.n"),
        too_small("data.train_batch_size", settings.data.train_batch_size, 1),
        _few_seeds(settings, config),
        long_turns(config, int(rollout.response_length), "data.max_response_length"),
        *_small_micro_batches(settings),
        *_validation_rejections(settings, config),
        (
            bool(rollout.get("full_determinism")),
            "actor_rollout_ref.rollout.full_determinism=True gives every request the same seed, so "
            "the episodes of a seed would be equal; set it to False",
        ),
        (
            bool(rollout.get("enable_rollout_routing_replay"))
            or _get(actor, "router_replay.mode") == "R3",
            "rollout.enable_rollout_routing_replay=True and router_replay.mode=R3 need the experts "
            "of every sampled token, which gem's agent loop does not return; set the first to "
            "False and the mode to disabled",
        ),
        *_attention_rejections(settings),
        *(algorithm_rejections(settings.algorithm, config.advantage) if per_turn else ()),
        *(_unused_rejections(settings.algorithm, config) if per_turn else ()),
        (
            per_turn and config.estimator_kwargs.get("per_env") and not has_gem_trainer(settings),
            "per_env needs the environment of each sequence, which only gem's trainers read; "
            "set trainer.v1.trainer_mode=gem_sync",
        ),
        *_critic_rejections(settings, config, per_turn),
        (
            config.metrics is not None and not has_gem_trainer(settings),
            f"GemConfig(metrics={config.metrics!r}) needs gem's trainers, which write it; "
            "set trainer.v1.trainer_mode=gem_sync, or remove metrics",
        ),
        (
            filter_groups.get("enable") and filter_metric != "reward",
            f"algorithm.filter_groups.metric={filter_metric} is undefined for a failed "
            "episode, at which verl would fail; set it to reward",
        ),
        (
            filter_groups.get("enable") and not settings.trainer.use_v1,
            "algorithm.filter_groups.enable=True has no effect in verl's legacy trainer; set it to "
            "False, or trainer.use_v1=True",
        ),
        (
            per_turn and actor.policy_loss.get("loss_mode") == "geo_mean",
            "actor.policy_loss.loss_mode=geo_mean takes one advantage per sequence; "
            "use another, such as vanilla",
        ),
        (
            bool(rewards),
            f"{', '.join(rewards)}: verl calls no reward function or manager, because the "
            "environment gives the rewards; remove it, and change rewards in a wrapper around "
            "the environment, or mask cut turns with data.gem.on_cut=mask",
        ),
        (
            bool(turns),
            f"{', '.join(turns)}: gem's agent loop plays the environment and ignores verl's "
            "own multi-turn settings; remove it, and set data.gem.horizon or data.gem.tools",
        ),
        (
            template_kwargs and template_kwargs != dict(config.template_kwargs),
            f"data.apply_chat_template_kwargs={template_kwargs} applies to verl's own agent "
            "loops only; remove it, and set data.gem.template_kwargs",
        ),
        (
            corrected and not rollout.calculate_log_probs,
            "algorithm.rollout_correction needs the sampler's logprobs; set "
            "actor_rollout_ref.rollout.calculate_log_probs=True",
        ),
        (
            correction.get("bypass_mode")
            and (
                correction.get("rollout_is")
                or correction.get("rollout_rs")
                or correction.get("loss_type") == "reinforce"
            ),
            "algorithm.rollout_correction.bypass_mode=True: verl then ignores rollout_is, "
            "rollout_rs and loss_type; set bypass_mode=False to use them. For a loss without a "
            "ratio, set actor_rollout_ref.actor.policy_loss.loss_mode=gpg",
        ),
        (
            bool(settings.reward.reward_model.enable),
            "reward.reward_model.enable=True overwrites the environment's rewards; set it to False",
        ),
        (
            rewrites and one_sequence,
            f"{rewrites}, which splits an episode into several sequences; {one_sequence}",
        ),
        _incompatible_trl(),
    ]


def _small_micro_batches(settings: Any) -> Iterator[Rejection]:
    """Reject micro-batches that are smaller than the longest sequence."""
    rollout = settings.actor_rollout_ref.rollout
    both = int(rollout.prompt_length) + int(rollout.response_length)
    longest = max(both, int(rollout.get("max_model_len") or 0))
    for section, dynamic, _, name in _MICRO_BATCHES:
        own = _get(settings, section)
        unused = (section == "critic" and not own.enable) or (
            section == _REF and not settings.actor_rollout_ref.actor.use_kl_loss
        )
        if unused or not own.get(dynamic):
            continue
        workers = own if section != _ROLLOUT else settings.actor_rollout_ref.actor
        tokens = int(own[name]) * _sequence_parallel_size(workers)
        yield (
            tokens < longest,
            f"{section}.{name} limits a micro-batch to {tokens} tokens, but an episode may have "
            f"{longest} (data.max_prompt_length + data.max_response_length, or "
            "rollout.max_model_len), at which verl would fail; increase it",
        )


def fixed_micro_batches(settings: Any, critic: bool) -> list[int]:
    """Return the sizes of the micro-batches with a fixed number of sequences."""
    sizes = [1]
    for section, dynamic, name, _ in _MICRO_BATCHES:
        own = _get(settings, section)
        if not own.get(dynamic) and (section != "critic" or critic):
            sizes.append(int(own.get(name) or 1))
    return sizes


def _validation_rejections(settings: Any, config: TrainingConfig) -> list[Rejection]:
    """Reject evaluation seeds that verl would not use, and a validation without seeds."""
    trainer, data = settings.trainer, settings.data
    own, seeds = data.custom_cls.get("name") == "GemDataset", bool(config.held_out_seeds)
    only, before, every = (
        bool(trainer.get("val_only")),
        bool(trainer.get("val_before_train", True)),
        int(trainer.test_freq) > 0,
    )
    return [
        (
            own and seeds and not every and not only,
            f"trainer.test_freq={trainer.test_freq}: verl would not validate on "
            "data.gem.eval_seeds after an update; set trainer.test_freq to a number of updates, or "
            "remove eval_seeds",
        ),
        (
            own and not seeds and (every or only or before),
            "verl would validate (trainer.test_freq, val_before_train, val_only) without seeds to "
            "validate on; set data.gem.eval_seeds, or trainer.val_before_train=False and "
            "trainer.test_freq=-1",
        ),
    ]


def _get(settings: Any, name: str) -> Any:
    from omegaconf import OmegaConf

    return OmegaConf.select(settings, name)


def _few_seeds(settings: Any, config: TrainingConfig) -> Rejection:
    """Reject a batch above the number of seeds; a dataset of the user's own is not counted."""
    data, seeds = settings.data, len(config.train_seeds)
    most = int(data.get("train_max_samples") or -1)
    if most > 0:  # verl trains on so many of them
        seeds = min(seeds, most)
    rejected, message = few_seeds(seeds, int(data.train_batch_size), "data.train_batch_size")
    own = data.custom_cls.get("name") == "GemDataset" and not settings.trainer.get("val_only")
    return own and rejected, message


def _attention_rejections(settings: Any) -> list[Rejection]:
    """Return the rejections of the attention of actor and reference model."""
    from gem_verl import attention  # needs transformers

    actor, model = settings.actor_rollout_ref.actor, settings.actor_rollout_ref.model
    name = str((model.get("override_config") or {}).get("attn_implementation", _FLASH))
    missing, workers = attention.missing_kernel(), (actor, settings.actor_rollout_ref.ref)
    ranks = max(_sequence_parallel_size(worker) for worker in workers)
    return [
        (missing and name == attention.NAME and settings.trainer.device == "cuda", missing),
        (
            str(actor.strategy).startswith("fsdp") and ranks > 1 and "flash" not in name,
            f"ulysses_sequence_parallel_size={ranks} gives each rank a part of every sequence, and "
            f"verl exchanges the parts in flash-attn only: with attn_implementation={name}, tokens "
            f"would not see those of other ranks. Set the size to 1, or use {_FLASH}",
        ),
    ]


def _sequence_parallel_size(worker: Any) -> int:
    """Return the number of ranks that share a sequence, of the actor or the reference model."""
    sizes = (
        own.get("ulysses_sequence_parallel_size")
        for own in (worker, worker.get("fsdp_config") or {})
    )
    return max(int(size or 1) for size in sizes)


def algorithm_rejections(algorithm: Any, advantage: str) -> list[Rejection]:
    """Return the rejections of settings under `algorithm`."""
    rejection_sampling = (algorithm.get("rollout_correction") or {}).get("rollout_rs")
    scale = (algorithm.get("gem") or {}).get("scale", True)
    return [
        (
            algorithm.get("use_kl_in_reward"),
            "algorithm.use_kl_in_reward=True adds a penalty to every token's reward, which gem's "
            "advantages do not read; set it to False and "
            "actor_rollout_ref.actor.use_kl_loss=True for KL in the loss",
        ),
        (
            rejection_sampling,
            f"algorithm.rollout_correction.rollout_rs={rejection_sampling!r} changes the loss "
            "mask, which splits turns; set it to null (importance weights, `rollout_is`, work)",
        ),
        (
            advantage == "grpo" and not algorithm.get("norm_adv_by_std_in_grpo", True) and scale,
            "algorithm.norm_adv_by_std_in_grpo=False applies to verl's own grpo only; set "
            "+algorithm.gem.scale=False, which is "
            "GemConfig(advantage='grpo', estimator_kwargs={'scale': False})",
        ),
        (
            algorithm.get("use_pf_ppo"),
            "algorithm.use_pf_ppo=True reweights batches for verl's own gae only; set it to False",
        ),
    ]


def _unused_rejections(algorithm: Any, config: TrainingConfig) -> list[Rejection]:
    """Reject settings that gem's estimators do not read, if they differ from verl's defaults."""
    from omegaconf import OmegaConf

    defaults = OmegaConf.load(str(files("verl.trainer.config") / "ppo_trainer.yaml")).algorithm
    unused = {k: v for k, v in _UNUSED.items() if not (k == "lam" and config.needs_values)}
    return [
        (
            algorithm.get(name) is not None and algorithm.get(name) != defaults.get(name),
            f"algorithm.{name}={algorithm.get(name)} {reason}",
        )
        for name, reason in unused.items()
    ]


def _critic_rejections(settings: Any, config: TrainingConfig, per_turn: bool) -> list[Rejection]:
    """Return the rejections of a critic's settings."""
    lam, own = settings.algorithm.get("lam", 1.0), config.estimator_kwargs.get("lam")
    return [
        (
            per_turn and not config.needs_values and bool(settings.critic.enable),
            "critic.enable=True trains a critic, which only 'gae' uses; set it to null, or "
            "algorithm.adv_estimator=gem_gae",
        ),
        (
            config.needs_values and not settings.critic.enable,
            f"the estimator {config.advantage!r} needs a critic; set critic.enable=True",
        ),
        (
            config.needs_values and not has_gem_trainer(settings),
            f"the estimator {config.advantage!r} needs gem's trainers, which read the critic's "
            "values; set trainer.v1.trainer_mode=gem_sync",
        ),
        (
            config.needs_values and lam not in (1.0, own),  # 1.0 is verl's default
            f"algorithm.lam={lam} applies to verl's own gae, token by token; set "
            f"+algorithm.gem.lam={lam}, which is GemConfig(estimator_kwargs={{'lam': {lam}}})",
        ),
    ]


def has_gem_trainer(settings: Any) -> bool:
    """Return whether one of gem's trainers runs; it marks its settings with `gem_trainer`."""
    v1 = settings.trainer.v1
    return bool(
        settings.trainer.use_v1
        and (v1.get("gem_trainer", False) or str(v1.trainer_mode).startswith(PREFIX))
    )


def rewrites_history(config: TrainingConfig) -> str:
    """Return what may split an episode into several sequences; "" if nothing does."""
    wrapper = config.rewriting_wrapper()
    if wrapper is not None:
        return f"the wrapper {wrapper!r} rewrites the history"
    if config.history == "template":
        return "history='template' may rewrite the history"
    return ""


def one_sequence_reason(settings: Any, config: TrainingConfig) -> str:
    """Return why an episode must be one sequence, with the remedy; "" if it may be several."""
    name = str(settings.algorithm.adv_estimator)
    if not name.startswith(PREFIX):
        return (
            f"verl's own estimator {name!r} treats each sequence as an episode; "
            "set algorithm.adv_estimator=gem_rebn"
        )
    if config.needs_groups and not has_gem_trainer(settings):
        return (
            f"the estimator {name!r} compares whole episodes, and only gem's trainers know the "
            "sequences of an episode; set trainer.v1.trainer_mode=gem_sync"
        )
    return ""


def _reward_settings(settings: Any) -> list[str]:
    """Return the settings of verl's own rewards, including those in their former places."""
    reward, former = settings.reward, settings.get("reward_model") or {}
    manager, former_function = reward.reward_manager, settings.get("custom_reward_function") or {}
    names = {
        "reward.custom_reward_function.path": reward.custom_reward_function.path,
        "custom_reward_function.path": former_function.get("path"),
        "reward.reward_manager": manager.name != "naive" or manager.source != "register",
        "reward_model.reward_manager": former.get("reward_manager") not in (None, "naive"),
        "reward.reward_kwargs": reward.get("reward_kwargs"),
        "reward_model.reward_kwargs": former.get("reward_kwargs"),
        "reward.sandbox_fusion.url": reward.sandbox_fusion.url,
    }
    return [name for name, value in names.items() if value]


def _turn_settings(multi_turn: Any) -> list[str]:
    """Return the settings that limit the turns or set the tools of verl's own agent loops."""
    names = ("max_assistant_turns", "max_user_turns", "tool_config_path", "function_tool_path")
    return [f"rollout.multi_turn.{name}" for name in names if multi_turn.get(name)]


def _incompatible_trl() -> Rejection:
    """Reject an installed TRL without the class that verl patches when it loads a model."""
    installed, has_class = find_spec("trl"), False
    for module in ("trl.experimental.ppo", "trl"):  # where verl looks for it
        with suppress(ImportError):
            has_class = has_class or hasattr(import_module(module), _VALUE_HEAD)
    where = ", ".join((installed and installed.submodule_search_locations) or ())
    return (
        installed is not None and not has_class,
        f"verl patches TRL's {_VALUE_HEAD} when it loads a model; the TRL in {where} has none. "
        "Install verl into an environment of its own, or remove TRL: pip uninstall trl",
    )
