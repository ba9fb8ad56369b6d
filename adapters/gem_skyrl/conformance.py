"""Conformance: runs the golden episodes through SkyRL's real trainer and loss.

gem's generator returns recorded episodes. SkyRL's trainer validates them, makes its batch, pads it
and computes advantages, as in training. The gradient is that of SkyRL's loss on SkyRL's model
wrapper. Only the Ray workers are missing: they split and distribute what the kit checks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import torch
from gem_conformance.golden import Case
from gem_conformance.harness import Harness, TrainedSequence
from gem_conformance.played import PlayedCase, answer
from skyrl.train.generators.base import BatchMetadata, TrajectoryID

from gem_core.adapter_kit.batch import response_start, trained_sequences
from gem_core.adapter_kit.critic import value_positions
from gem_core.adapter_kit.played import PlayedBatch
from gem_core.adapter_kit.response_tensors import read_responses
from gem_core.policies.tiny import load_tiny, tiny_model_path
from gem_core.types import Episode, Task
from gem_skyrl import ADAPTER
from gem_skyrl.config import GemConfig, check_settings, skyrl_config
from gem_skyrl.convert import PLAYED
from gem_skyrl.rollout import GemGenerator
from gem_skyrl.trainer import GemDataset, GemTrainer

__all__ = ["SkyRLHarness", "harness"]

_DATA_PARALLEL = 4
"""SkyRL pads a batch to a multiple of this."""


class _Recorded:
    """Rollout that returns recorded episodes."""

    recorded: Sequence[Episode] = ()

    async def episode(self, task: Task, **_: Any) -> Episode:
        return self.recorded[task.index]


class _ScriptedClient:
    """Client of SkyRL's engines with the kit's answers."""

    weight_version = 1

    async def generate(self, input_batch: Any, model: str | None = None) -> dict[str, Any]:
        (prompt,) = input_batch["prompt_token_ids"]
        given = answer(prompt, input_batch["sampling_params"]["max_tokens"])
        return {
            "response_ids": [list(given.ids)],
            "stop_reasons": [given.finish.value],
            "response_logprobs": [list(given.logprobs or ())],
        }

    async def finish_session(self, session_id: str) -> None:
        pass


class SkyRLHarness(Harness):
    """Harness for SkyRL: its trainer on the tiny model, without its workers."""

    adapter = ADAPTER
    carries = frozenset({"logprobs", "rewards"})
    max_context = 768
    only_cpu = False
    packed = False
    """Whether the gradient is that of packed sequences, which needs flash-attn."""

    def train(self, case: Case) -> list[TrainedSequence]:
        data, played, order = self._batch(case)
        numbered = [
            (order[number], _sequence(data, played, i))
            for i, number in enumerate(played.episode_of)
        ]
        return [sequence for _, sequence in sorted(numbered, key=lambda item: item[0])]

    def gradient(self, case: Case) -> Mapping[str, Any]:
        """Return the gradient of SkyRL's PPO loss at ratio 1, on its wrapper of the tiny model."""
        from skyrl.backends.skyrl_train.utils.ppo_utils import PolicyLossRegistry
        from skyrl.backends.skyrl_train.workers.model_wrapper import HFModelWrapper

        data = self._batch(case)[0]
        algorithm = self.trainer.cfg.trainer.algorithm
        data = self.trainer._normalize_advantages(
            data, data.metadata["policy_mini_batch_boundaries"]
        )
        model = HFModelWrapper(
            str(tiny_model_path()),
            bf16=False,
            use_flash_attention_2=self.packed,
            remove_microbatch_padding=self.packed,
        )
        model.to(self.device)
        data.to(self.device)
        # as in SkyRL's workers: the weights stay in float32
        with torch.autocast(self.device, torch.bfloat16, enabled=self.bfloat16):
            logprobs = model(
                data["sequences"],
                data.metadata["response_length"],
                attention_mask=data["attention_mask"],
                temperature=1.0,
            )
        loss, _ = PolicyLossRegistry.get(algorithm.policy_loss_type)(
            logprobs,
            logprobs.detach(),
            data["advantages"],
            config=algorithm,
            loss_mask=data["loss_mask"],
        )
        loss.backward()
        return {
            name: p.grad.detach().clone()
            for name, p in model.model.named_parameters()
            if p.grad is not None
        }

    def ranks(self, case: Case, parts: Sequence[Sequence[Episode]]) -> list[list[TrainedSequence]]:
        """Train the episodes of all ranks: SkyRL computes advantages before it splits a batch."""
        sequences = self.train(replace(case, episodes=tuple(e for part in parts for e in part)))
        first = sum(len(trained_sequences(episode, 0)) for episode in parts[0])
        return [sequences[:first], sequences[first:]]

    def play(self, case: PlayedCase) -> list[Episode]:
        """Play on a client of scripted answers, through the adapter's own generator."""
        generator = GemGenerator(
            GemConfig(**case.config), self.settings, _ScriptedClient(), load_tiny()[1]
        )
        output = asyncio.run(generator.generate(_prompts(case.seeds, case.update + 1)))
        generator.close()
        return PlayedBatch.of(output[PLAYED]).episodes

    @cached_property
    def settings(self) -> Any:
        settings = [
            f"trainer.policy.model.path={tiny_model_path()}",
            "trainer.strategy=megatron",  # no worker starts; fsdp would warn about tied weights
            "trainer.enable_ray_gpu_monitor=false",
            "generator.inference_engine.enable_ray_prometheus_stats=false",
            "trainer.train_batch_size=8",
            "generator.n_samples_per_prompt=2",
            "generator.max_input_length=512",
            "trainer.max_prompt_length=512",
            f"generator.sampling_params.max_generate_length={self.max_context - 512}",
            "trainer.logger=console",
        ]
        return skyrl_config(GemConfig("game:GuessTheNumber-v0-easy"), settings)

    @cached_property
    def trainer(self) -> Any:
        config, settings = GemConfig("game:GuessTheNumber-v0-easy"), self.settings
        tokenizer = load_tiny()[1]
        generator: Any = GemGenerator(config, settings, _ScriptedClient(), tokenizer)
        generator.rollout = _Recorded()
        dataset = GemDataset(config.env_id, range(64))
        make: Any = GemTrainer
        trainer = make(settings, None, tokenizer, dataset, None, generator)
        trainer.dispatch = SimpleNamespace(get_lcm_dp_size=lambda: _DATA_PARALLEL)
        trainer.global_step = 1
        return trainer

    def _batch(self, case: Case) -> tuple[Any, PlayedBatch, list[int]]:
        """Run SkyRL's trainer on golden episodes, up to the input of its loss.

        Return the batch, its episodes, and the place of each in the case: SkyRL's batches have the
        episodes of one prompt side by side.
        """
        trainer, generator = self.trainer, self.trainer.generator
        groups: dict[Any, list[int]] = {}
        for i, episode in enumerate(case.episodes):
            groups.setdefault(episode.group, []).append(i)
        order = [i for members in groups.values() for i in members]
        values = case.arguments.get("values")
        generator.config = replace(
            generator.config,
            advantage=case.estimator,
            gamma=case.gamma,
            estimator_kwargs={k: v for k, v in case.arguments.items() if k != "values"},
        )
        settings = trainer.cfg.trainer
        settings.critic.model.path = str(tiny_model_path()) if values else None
        check_settings(trainer.cfg, generator.config)
        sizes = settings.train_batch_size, settings.policy_mini_batch_size
        settings.train_batch_size = settings.policy_mini_batch_size = len(groups)
        settings.critic_mini_batch_size = len(groups)
        generator.rollout.recorded = [case.episodes[i] for i in order]
        prompts = _prompts(order, 1)
        uid_of = {i: str(uid) for uid, members in enumerate(groups.values()) for i in members}
        prompts["trajectory_ids"] = [TrajectoryID(uid_of[i], i) for i in order]
        output = asyncio.run(trainer.generate(prompts))
        uids = [trajectory.instance_id for trajectory in output["trajectory_ids"]]
        output, uids = trainer.postprocess_generator_output(output, uids)
        data = trainer.convert_to_training_input(output, uids)
        settings.train_batch_size, settings.policy_mini_batch_size = sizes
        played = trainer.played
        data["values"] = torch.zeros_like(data["rewards"])
        if values:
            _put_values(data, played, [values[i] for i in order])
        return trainer.compute_advantages_and_returns(data), played, order


def harness() -> SkyRLHarness:
    """Return the harness that `gem-rl conformance skyrl` runs."""
    return SkyRLHarness()


def _prompts(seeds: Sequence[int], global_step: int) -> dict[str, Any]:
    """Return a `GeneratorInput` with one prompt per seed, as SkyRL's trainer makes it."""
    params = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "logprobs": 1, "max_tokens": 256}
    return {
        "prompts": [[] for _ in seeds],
        "env_classes": ["gem" for _ in seeds],
        "env_extras": [{"seed": seed} for seed in seeds],
        "sampling_params": params,
        "trajectory_ids": [TrajectoryID(str(i), 0) for i, _ in enumerate(seeds)],
        "batch_metadata": BatchMetadata(global_step=global_step, training_phase="train"),
    }


def _sequence(data: Any, played: PlayedBatch, i: int) -> TrainedSequence:
    """Return a sequence of the loss's tensors, without padding and tail."""
    length = len(played.sequences[i].ids)
    ids = read_responses(data["sequences"], data["attention_mask"])[i]

    def aligned(name: str) -> list[Any]:
        numbers = read_responses(data[name], data["response_mask"])[i]
        return ([0] * (len(ids) - len(numbers)) + numbers)[:length]

    return TrainedSequence(
        ids=ids[:length],
        mask=[int(m) for m in aligned("loss_mask")],
        advantages=aligned("advantages"),
        logprobs=aligned("rollout_logprobs"),
        rewards=aligned("rewards"),
    )


def _put_values(data: Any, played: PlayedBatch, values: Sequence[Sequence[float]]) -> None:
    """Write the case's values where the trainer reads those of its critic."""
    width = data["values"].shape[1]
    for number, (episode, known) in enumerate(zip(played.episodes, values)):
        own = [i for i, n in enumerate(played.episode_of) if n == number]
        sequences = [played.sequences[i] for i in own]
        for (s, i), value in zip(value_positions(episode, sequences), known):
            first = width - int(data["response_mask"][own[s]].sum())
            data["values"][own[s], first + i + 1 - response_start(sequences[s])] = value
        if len(known) > len(episode.turns):
            data["values"][own[-1], -1] = known[-1]
