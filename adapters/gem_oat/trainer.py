"""Trainer: runs oat with gem's per-turn advantages.

oat computes advantages in `process_feedback_data`, which a learner may override. gem overrides that
method: it calls oat's own, which fills the buffer and asks the critic for values, then replaces the
advantages. Everything else is oat's own code.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import launchpad
import torch
import torch.distributed
from oat.algorithms.ppo_multiturn import MultiTurnTransitionDataset, PPOMultiTurnLearner
from oat.args import default_args_validation
from oat.interface import get_program

from gem_core.adapter_kit.batch import check_sequence
from gem_core.adapter_kit.patching import patched
from gem_core.adapter_kit.trainer_rollout import try_environment
from gem_core.adapter_kit.update_log import UpdateLog
from gem_core.errors import BatchMismatchError
from gem_core.plugins.events import send_event
from gem_core.plugins.manager import hook
from gem_core.training.metrics import BatchMetrics, logprob_gap
from gem_core.types import Episode
from gem_oat.checkpoint import Progress, resume, save
from gem_oat.config import GemConfig, check_settings, ppo_kwargs
from gem_oat.convert import GemTransition, episodes_of, per_token, tokens_played
from gem_oat.critic import any_transformers_version, put_targets, read_last_token
from gem_oat.rollout import GemActor
from gem_oat.worker import newer_torch

__all__ = [
    "GemDataset",
    "GemLearner",
    "check_batch",
    "ppo_kwargs",
    "program",
    "put_advantages",
    "tokens_of",
    "train",
]

_LOGGED = {
    "loss": "train/pg_loss",
    "grad_norm": "train/policy_grad_norm",
    "critic_loss": "train/critic_loss",
    "kl_sample_train": "train/kl_sample_train_v2",
    "older_weights": "gem/older_weights",
    "logprob_gap": "gem/logprob_gap",
    "logprob_gap_p99": "gem/logprob_gap_p99",
}


def train(config: GemConfig, settings: Any) -> None:
    """Train with oat to the end.

    `settings`: oat's `PPOArgs`, built with `ppo_kwargs(config)`.
    """
    nodes, resources = program(config, settings)
    manager = launchpad.launch(
        nodes,
        launch_type=settings.launch_type,
        local_resources=resources,
        terminal="current_terminal",
    )
    manager.wait()


def program(config: GemConfig, settings: Any) -> tuple[Any, Any]:
    """Return oat's launchpad program with gem's actor and learner, and its local resources.

    Raises `EnvError` if one step of the environment fails, before a process starts.
    """
    check_settings(settings, config)
    try_environment(config)
    settings.gem = config  # oat passes its arguments to every actor and learner
    nodes, resources = get_program(default_args_validation(settings), GemLearner, GemActor)
    return nodes, resources


class GemDataset(MultiTurnTransitionDataset):
    """oat's dataset. Its batches also carry the index of each transition in the buffer."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for index, item in enumerate(self.transitions):
            item["gem_index"] = index

    def collate_fn(self, item_list: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return {
            **super().collate_fn(item_list),
            "gem_index": [item["gem_index"] for item in item_list],
        }


class GemLearner(PPOMultiTurnLearner):
    """oat's multi-turn learner with per-turn advantages by the estimator of its `GemConfig`."""

    args: Any
    actors: Any
    dataset_builder: Any

    def _init(self, args: Any, actors: list[Any]) -> None:
        with newer_torch(), any_transformers_version():
            super()._init(args, actors)
        self.dataset_builder = GemDataset
        self.gem_log = UpdateLog.of(args.gem, write=self.strategy.is_rank_0())
        self._logged = 0
        self.gem_updates = 0
        """The updates of the run that this one resumes."""
        self.gem_finished = 0
        """All finished updates."""
        self.gem_trained = Progress()
        self.gem_metrics = BatchMetrics()
        self.gem_weight = 1.0
        """The weight of a trained transition: all transitions over those that are trained."""
        self._logprobs: list[list[float]] | None = None
        rank = torch.distributed.get_rank()
        self.gem_actor = actors[rank % len(actors)] if actors else None
        """The actor that this learner gets its batches from."""
        if self.critic is not None:
            read_last_token(self.critic)
        self.strategy.save_ckpt = partial(save, self, self.strategy.save_ckpt)
        if args.resume_dir:
            resume(self)

    def run(self) -> None:
        """Train as oat does. An error closes the actor, which records its episodes."""
        try:
            super().run()
        except Exception:
            if self.gem_actor is not None:
                self.gem_actor.finish()
            raise

    def prepare_data(self, strategy: Any, tokenizer: Any) -> None:
        """Make `max_train` empty prompts: oat counts transitions by them, and gem ignores them."""
        self.make_prompts(strategy, strategy.args.max_train)
        self.eval_prompts_dataset, self.eval_prompts_dataloader = [], None

    def make_prompts(self, strategy: Any, number: int) -> None:
        """Make empty prompts. Training ends after this number of transitions."""
        self.prompts_dataset = [("", "", "")] * number
        self.prompts_dataloader = strategy.setup_dataloader(
            self.prompts_dataset, strategy.args.rollout_batch_size_per_device
        )

    def process_feedback_data(self, data_list: Any) -> None:
        """Fill oat's buffer, then replace its advantages and add gem's metrics."""
        transitions: list[GemTransition] = [transition for part in data_list for transition in part]
        size = self.args.rollout_batch_size_per_device
        if len(transitions) != size:
            raise BatchMismatchError(
                f"the learner expected a batch of {size} transitions, got {len(transitions)}; oat "
                "would drop some at random, or train on too few. Use gem_oat's actor"
            )
        super().process_feedback_data(data_list)
        _put_padding_logprobs(self, transitions)
        per_turn, episodes = put_advantages(self, data_list), episodes_of(data_list)
        update = self.gem_updates + self.steps - 1
        self.gem_trained.add(episode.index for episode in episodes)
        if self.gem_actor is not None:
            self.gem_actor.record_trained(update, per_turn)
        _send_batch_end(episodes)
        turns = [t for t in transitions if not t.padding]
        counts = Counter(
            turns=len(turns),
            trained=sum(bool(t.loss_mask) for t in turns),
            older=sum(_version(t) < update for t in turns),
        )
        parts = _gather((BatchMetrics.of(episodes, per_turn), counts))
        self.gem_metrics = BatchMetrics.total(metrics for metrics, _ in parts)
        counts = sum((count for _, count in parts), Counter())
        # oat's losses divide by all transitions of the update
        self.gem_weight = size * len(parts) / (counts["trained"] or size * len(parts))
        shown = {
            **self.gem_metrics.means(),
            "episodes": float(self.gem_metrics.episodes),
            "padding": 1.0 - counts["turns"] / (size * len(parts)),
            "older_weights": counts["older"] / max(counts["turns"], 1),
        }
        self.actor_info = {
            **self.actor_info,
            **{f"gem/{name}": value for name, value in shown.items()},
        }

    def learning_step(self, trajectory: dict[str, Any]) -> Any:
        """Check the batch, then train on it as oat does, with a mean over the trained transitions.

        oat's losses are means over all transitions, padding included.
        """
        check_batch(trajectory, self.pi_buffer)
        if not self.gem_metrics.tokens:  # on all ranks; Adam's momentum would move the weights
            return {name: torch.zeros(()) for name in ("pg_loss", "policy_grad_norm")}
        weights = [self.gem_weight * mask for mask in trajectory["loss_masks"]]
        self._logprobs = []
        losses: defaultdict[str, list[Any]] = defaultdict(list)

        def backward(loss: Any, model: Any, *args: Any, **kwargs: Any) -> None:
            losses["critic_loss" if model is self.critic else "pg_loss"].append(loss.detach())
            original(loss, model, *args, **kwargs)

        with (
            # the critic's loss has no mask: the others have their own value as a target
            patched(self.args, "vf_coef", self.gem_weight * self.args.vf_coef),
            patched(self.strategy, "backward", backward, "loss model optimizer kwargs") as original,
        ):
            infos = super().learning_step({**trajectory, "loss_masks": weights})
        # oat's own are those of the last transition on this rank
        for name, values in losses.items():
            means = _gather(float(torch.stack(values).float().mean()))
            infos[name] = torch.tensor(sum(means) / len(means))
        gap = _logprob_gap(trajectory, self._logprobs)
        self._logprobs = None
        self.actor_info = {**self.actor_info, **{f"gem/{n}": value for n, value in gap.items()}}
        return infos

    def get_batch_logps(  # type: ignore[override]  # oat's own override differs from its base
        self, model: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Compute logprobs as oat does, and keep those from before an update."""
        logprobs, entropy = super().get_batch_logps(model, *args, **kwargs)
        # in an update, oat computes them once without the entropy, one transition at a time
        before = self._logprobs is not None and not kwargs.get("compute_entropy")
        if before and model is self.model:
            self._logprobs += logprobs.tolist()
        return logprobs, entropy

    def evaluate(self, dataloader: Any, steps: int) -> dict[str, float]:
        """Play the seeds to evaluate on, on all actors of this group."""
        self._pre_evaluate()
        result: list[Any] = [None]
        if self.strategy.is_rank_0():
            seeds = self.args.gem.held_out_seeds
            futures = [
                actor.futures.play_held_out(seeds[i :: len(self.actors)])
                for i, actor in enumerate(self.actors)
            ]
            result = [BatchMetrics.total(future.result() for future in futures).means()]
        torch.distributed.broadcast_object_list(result)
        self._post_evaluate()
        return {f"eval/gem/{name}": value for name, value in result[0].items()}

    def eval_and_log(
        self, train_info: dict[str, Any], eval: bool = False, save: bool = False
    ) -> None:
        """Log as oat does, and write a line to the metrics file after each update."""
        updates = int(train_info.get("train/learning_round", 0))
        self.gem_finished = self.gem_updates + updates
        super().eval_and_log(train_info, eval, save)
        if updates != self._logged:  # not before the first update; oat logs the last one twice
            self._logged = updates
            values = {**self.actor_info, **train_info}
            trainer = {name: float(values[key]) for name, key in _LOGGED.items() if key in values}
            self.gem_log.write(self.gem_finished - 1, self.gem_metrics, **trainer)
        if save and self.gem_actor is not None:  # the end of training
            self.gem_actor.finish()


def put_advantages(learner: Any, data_list: Sequence[Sequence[GemTransition]]) -> list[list[float]]:
    """Replace oat's advantages with gem's: one number per transition, 0 on untrained ones.

    Statistics cover all ranks. Returns the advantages of the episodes of this rank, by turn.
    """
    for transition in (t for transitions in data_list for t in transitions):
        transition.info["advantages"] = 0.0
    played = [
        transitions for transitions in data_list if transitions and not transitions[0].padding
    ]
    episodes = episodes_of(played)
    values = None if learner.critic is None else put_targets(learner, data_list, played)
    per_turn = learner.args.gem.compute_advantages(episodes, _gather, values)
    for transitions, numbers in zip(played, per_turn):
        for transition in transitions:
            transition.info["advantages"] = per_token(transition, numbers)
    of_played = iter(per_turn)
    return [
        [0.0] * len(episode.turns) if episode.failed or not episode.turns else next(of_played)
        for episode in episodes_of(data_list)
    ]


def check_batch(batch: Mapping[str, Any], transitions: Sequence[GemTransition]) -> None:
    """Raise `BatchMismatchError` unless the batch holds the played ids and loss masks."""
    order = batch.get("gem_index", ())
    if sorted(order) != list(range(len(transitions))):
        raise BatchMismatchError(
            f"oat's batch has {len(order)} transitions with an index, but {len(transitions)} were "
            "collected; use a version of oat that the adapter supports, and GemLearner's own "
            "dataset"
        )
    for i, index in enumerate(order):
        prompt, response, mask = tokens_played(transitions[index])
        check_sequence(
            f"transition {index} of oat's batch", *tokens_of(batch, i), prompt + response, mask
        )
        if prompt and batch["state_ids"][i].tolist() != prompt:
            raise BatchMismatchError(
                f"the critic's state in transition {index} of oat's batch is not the played "
                "prompt; use a version of oat that the adapter supports"
            )


def tokens_of(batch: Mapping[str, Any], i: int) -> tuple[list[int], list[int]]:
    """Return (ids, loss mask) of one transition as oat's loss reads them, without padding."""
    ids: list[int] = batch["input_ids"][i][batch["attention_mask"][i].bool()].tolist()
    prompt, weight = batch["prompt_ids_lens"][i], batch["loss_masks"][i]
    return ids, [0] * prompt + [weight] * (len(ids) - prompt)


def _logprob_gap(
    trajectory: Mapping[str, Any], learner: Sequence[Sequence[float]]
) -> dict[str, float]:
    """Compare the logprobs of vLLM and of the learner before the update, on trained turns."""
    sampled: list[float] = []
    computed: list[float] = []
    for i, trained in enumerate(trajectory["loss_masks"]):
        if trained:
            start, sampler = trajectory["prompt_ids_lens"][i] - 1, trajectory["action_logprobs"][i]
            sampled += sampler
            computed += learner[i][start : start + len(sampler)]
    parts = _gather((sampled, computed))
    return logprob_gap(chain(*(part[0] for part in parts)), chain(*(part[1] for part in parts)))


def _send_batch_end(episodes: Sequence[Episode]) -> None:
    """Send the plugin event with the episodes of all ranks, on the first rank."""
    if hook.batch_end.get_hookimpls():  # all ranks have the same plugins
        gathered = _gather(list(episodes))
        if torch.distributed.get_rank() == 0:
            send_event("batch_end", episodes=[e for part in gathered for e in part])


def _put_padding_logprobs(learner: Any, transitions: Sequence[GemTransition]) -> None:
    """Give padding transitions the learner's own logprobs.

    oat's metrics then show no difference between sampler and learner for them.
    """
    padding = [transition for transition in transitions if transition.padding]
    # without padding as well: sharded weights need all ranks in the forward pass
    ids = [*padding[0].prompt_ids, *padding[0].response_ids] if padding else [0, 0]
    sequence = torch.tensor([ids]).to(torch.cuda.current_device())
    with torch.no_grad():
        logprobs, _ = learner.get_batch_logps(
            learner.model, sequence, torch.ones_like(sequence), temperature=learner.args.temperature
        )
    for transition in padding:
        transition.response_logprobs = [float(logprobs[0, -1])]


def _version(transition: GemTransition) -> float:
    """Return the oldest weight version that a turn was sampled from."""
    assert transition.episode is not None
    versions = transition.episode.turns[transition.turn].versions
    return float("inf") if versions is None else versions[0]


def _gather(value: Any) -> list[Any]:
    """Collect a value from every rank."""
    gathered: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(gathered, value)
    return gathered
