"""Conformance: runs the golden episodes through verl's real agent loop workers, trainer and loss.

On a small Ray cluster, verl's default trainer (V1) submits prompts to its workers, whose agent loop
returns recorded episodes. The trainer takes the batch from the replay buffer, pads it, computes
advantages and stores them in TransferQueue, as in training. Only the training engine, which needs a
GPU, is replaced: verl's loss runs on a transformers model.
"""

from __future__ import annotations

import asyncio
import pickle
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gem_conformance.golden import Case
from gem_conformance.harness import Harness, TrainedSequence
from gem_conformance.played import ENV_ID, PlayedCase, answer

from gem_core.adapter_kit.batch import response_start
from gem_core.adapter_kit.critic import value_positions
from gem_core.policies.tiny import load_tiny, tiny_model_path
from gem_core.training.advantage import estimators
from gem_core.types import Episode
from gem_verl import ADAPTER
from gem_verl.batch import put, read_batch, stored
from gem_verl.config import PREFIX, GemConfig, check_settings, hydra_config, read_config
from gem_verl.dataset import row_of
from gem_verl.rollout import EnginePolicy, GemAgentLoop

__all__ = [
    "Replay",
    "VerlHarness",
    "golden_columns",
    "harness",
    "objects",
    "set_algorithm",
    "trained_sequence",
]

_BATCH_MULTIPLE = 4
"""verl pads a batch to a multiple of this."""
FIELDS = ["prompts", "responses", "response_mask", "advantages", "rm_scores", "rollout_log_probs"]


class Replay(GemAgentLoop):
    """Agent loop that returns recorded episodes. Each row names the estimator."""

    async def episode(self, engine: EnginePolicy, row: dict[str, Any], step: int) -> Episode:
        fields = row["extra_info"]["gem"]
        set_algorithm(self.config, fields["estimator"], fields["gamma"])
        recorded: list[Episode] = pickle.loads(fields["episodes"])
        return recorded[int(row.get("session_id", 0))]


class _ScriptedClient:
    """Client of verl's inference servers with the kit's answers."""

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any
    ) -> Any:
        from verl.workers.rollout.replica import TokenOutput

        given = answer(prompt_ids, sampling_params["max_tokens"])
        return TokenOutput(token_ids=list(given.ids), log_probs=list(given.logprobs or ()))


class VerlHarness(Harness):
    """Harness for verl: its default trainer on the tiny model, without its training workers."""

    adapter = ADAPTER
    carries = frozenset({"logprobs", "rewards"})
    max_context = 768
    only_cpu = False

    def __init__(
        self, config: GemConfig | None = None, client: Any = None, settings: Sequence[str] = ()
    ) -> None:
        """Replay golden episodes, or play the environment of `config` with `client`.

        `client`: verl's client of its inference servers. `settings`: further hydra overrides.
        """
        self.config = config or GemConfig("game:GuessTheNumber-v0-easy", seeds=64, gamma=0.9)
        self.client, self.more_settings = client, list(settings)
        self._step = 0

    def train(self, case: Case) -> list[TrainedSequence]:
        return [sequence for _, sequence in self._replay(case, case.episodes)]

    def gradient(self, case: Case) -> Mapping[str, Any]:
        """Return the gradient of verl's PPO loss at ratio 1, on the tiny model's logits."""
        from tensordict import TensorDict
        from verl.utils.config import omega_conf_to_dataclass
        from verl.utils.torch_functional import logprobs_from_logits
        from verl.workers.utils.losses import ppo_loss

        sequences = self.train(case)
        starts = [next((i for i, m in enumerate(s.mask) if m), len(s.ids) - 1) for s in sequences]
        dtype = torch.bfloat16 if self.bfloat16 else torch.float32
        model = load_tiny(self.device)[0].to(dtype).train()
        logprobs = []
        for sequence in sequences:
            ids = torch.tensor([sequence.ids], device=self.device)
            # verl's engines give each position the logprob of the next token; the last is not read
            logprobs.append(
                logprobs_from_logits(model(input_ids=ids).logits[0], torch.roll(ids[0], -1))
            )

        def nested(parts: Sequence[Any], dtype: Any = torch.int64) -> Any:
            return torch.nested.as_nested_tensor(
                [torch.as_tensor(p, dtype=dtype, device=self.device) for p in parts],
                layout=torch.jagged,
            )

        data = TensorDict(
            {
                "prompts": nested([s.ids[:start] for s, start in zip(sequences, starts)]),
                "responses": nested([s.ids[start:] for s, start in zip(sequences, starts)]),
                "response_mask": nested([s.mask[start:] for s, start in zip(sequences, starts)]),
                "advantages": nested(
                    [s.advantages[start:] for s, start in zip(sequences, starts)], torch.float32
                ),
                "old_log_probs": nested(
                    [p.detach()[start - 1 : -1] for p, start in zip(logprobs, starts)],
                    torch.float32,
                ),
            },
            batch_size=len(sequences),
        )
        # verl's default, `token-mean`, divides by this number: the canonical weighting
        data.set_non_tensor("batch_num_tokens", sum(sum(s.mask) for s in sequences))
        data.set_non_tensor("global_batch_size", len(sequences))
        data.set_non_tensor("dp_size", 1)
        actor_config = omega_conf_to_dataclass(self.settings.actor_rollout_ref.actor)
        loss, _ = ppo_loss(actor_config, {"log_probs": nested(logprobs, torch.float32)}, data)
        loss.backward()
        return {
            name: p.grad.detach().clone()
            for name, p in model.named_parameters()
            if p.grad is not None
        }

    def ranks(self, case: Case, parts: Sequence[Sequence[Episode]]) -> list[list[TrainedSequence]]:
        """Run two of verl's worker processes. Its single trainer computes the advantages."""
        episodes = [episode for part in parts for episode in part]
        sequences = self._replay(case, episodes, self._process_manager)
        return [
            [sequence for index, sequence in sequences if (index < len(parts[0])) is first]
            for first in (True, False)
        ]

    def play(self, case: PlayedCase) -> list[Episode]:
        """Run one agent loop per episode on a client of scripted answers, as verl's worker does."""
        from verl.experimental.agent_loop.agent_loop import DictConfigWrap

        settings = [
            f"actor_rollout_ref.model.path={tiny_model_path()}",
            "actor_rollout_ref.rollout.name=vllm",
            "actor_rollout_ref.rollout.calculate_log_probs=True",
            "data.train_batch_size=1",  # for the check
            "data.max_prompt_length=256",
            f"data.max_response_length={self.max_context - 256}",
        ]
        composed = hydra_config(GemConfig(**case.config), settings)
        _, tokenizer = load_tiny()
        params = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "logprobs": True}

        async def one(index: int, seed: int) -> Episode:
            data = DictConfigWrap(composed.data)
            loop = GemAgentLoop(
                DictConfigWrap(composed), _ScriptedClient(), tokenizer, None, None, data
            )
            row = {**row_of(ENV_ID, seed, index), "global_steps": case.update + 1}
            output = await loop.run(dict(params), **row)
            first = output[0] if isinstance(output, list) else output
            episode: Episode = pickle.loads(first.extra_fields["gem"])
            return episode

        async def batch() -> list[Episode]:
            return await asyncio.gather(*(one(i, seed) for i, seed in enumerate(case.seeds)))

        return asyncio.run(batch())

    def sequences(
        self, columns: Mapping[str, Sequence[Any]], manager: Any = None
    ) -> dict[str, TrainedSequence]:
        """Run verl's trainer on prompts, up to the input of its loss.

        Return each sequence by its key, without padding.
        """
        import transfer_queue as tq
        from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size
        from verl.utils import tensordict_utils as tu

        trainer = self.trainer
        self._step += 1
        trainer.global_steps = self._step
        trainer.agent_loop_manager = manager or self._inline_manager
        prompts = tu.get_tensordict({name: objects(column) for name, column in columns.items()})
        tu.assign_non_tensor_data(prompts, "global_steps", self._step)
        try:
            trainer._submit_batch_to_rollout(prompts)
            batch, _ = trainer.replay_buffer.sample(self._step, "train", len(prompts))
            batch = upsample_batch_to_divisible_size(batch, _BATCH_MULTIPLE, 2)
            has_logprobs = bool(self.settings.actor_rollout_ref.rollout.calculate_log_probs)
            fields = FIELDS if has_logprobs else FIELDS[:-1]
            logprobs = tq.kv_batch_get(
                keys=batch.keys, partition_id="train", select_fields=[fields[-1]]
            )
            # the trainer's model is the one that sampled; without logprobs, any numbers do
            logprobs["old_log_probs"] = logprobs.pop(fields[-1])
            tq.kv_batch_put(keys=batch.keys, partition_id="train", fields=logprobs)
            if trainer.gem_config.needs_values:
                self._put_values(batch)
            self.metrics: dict[str, Any] = {}
            trainer._compute_advantage(batch, self.metrics)
            contents = stored(batch, *fields)
            self._tails = tails_of(batch, trainer.gem_config.needs_values)
            self.tags = dict(zip(batch.keys, batch.tags))
        finally:
            remaining = tq.kv_list("train").get("train", {})
            if remaining:
                tq.kv_clear(keys=list(remaining), partition_id="train")
        return {
            key: trained_sequence(
                {name: contents[name][i] for name in fields}, self._tails.get(key, 0)
            )
            for i, (key, tag) in enumerate(zip(batch.keys, batch.tags))
            if not tag.get("is_padding", False)
        }

    def _put_values(self, batch: Any) -> None:
        """Write the case's values where the trainer reads those of its critic."""
        played, known = read_batch(batch, values=True), self._case.arguments["values"]
        values = [torch.zeros(len(r)) for r in stored(batch, "responses")["responses"]]
        for episode, places in zip(played.episodes, played.places):
            own = [(i, played.sequences[i]) for i in places]
            of_episode = known[self._case.episodes.index(episode)]
            positions = value_positions(episode, [sequence for _, sequence in own])
            for (s, i), value in zip(positions, of_episode):
                index, sequence = own[s]
                values[index][i + 1 - response_start(sequence)] = value
            if len(of_episode) > len(episode.turns):
                values[own[-1][0]][-1] = of_episode[-1]
        put(batch, values=values)

    def _replay(
        self, case: Case, episodes: Sequence[Episode], manager: Any = None
    ) -> list[tuple[int, TrainedSequence]]:
        """Return (index of the episode, sequence) for each sequence of golden episodes.

        The episodes of a group are the sessions of one prompt, as in verl.
        """
        trainer, self._case = self.trainer, case
        set_algorithm(trainer.config, case.estimator, case.gamma)
        check_settings(trainer.config, read_config(trainer.config))
        trainer.gem_config = replace(
            self.config,
            advantage=case.estimator,
            gamma=case.gamma,
            estimator_kwargs={k: v for k, v in case.arguments.items() if k != "values"},
        )
        groups: dict[Any, list[int]] = {}
        for i, episode in enumerate(episodes):
            groups.setdefault(episode.group, []).append(i)
        prompts = list(groups.values())
        columns = golden_columns(case, episodes, prompts)
        columns["__rollout_n__"] = [len(members) for members in prompts]
        sequences = []
        for key, sequence in self.sequences(columns, manager).items():
            uid, session, number = key.rsplit("_", 2)
            sequences.append((prompts[int(uid)][int(session)], int(number), sequence))
        sequences.sort(key=lambda item: item[:2])
        return [(index, sequence) for index, _, sequence in sequences]

    @cached_property
    def settings(self) -> Any:
        from omegaconf import OmegaConf, open_dict

        settings = [
            f"actor_rollout_ref.model.path={tiny_model_path()}",
            "actor_rollout_ref.rollout.agent.num_workers=2",
            "actor_rollout_ref.rollout.name=vllm",
            "actor_rollout_ref.rollout.n=2",  # for the check; golden prompts set their own number
            "actor_rollout_ref.rollout.calculate_log_probs=True",
            "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8",
            "data.train_batch_size=1",  # for the check
            "data.max_prompt_length=64",
            "data.max_response_length=128",
            "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
        ]
        if self.client is None:
            agents = Path(tempfile.mkdtemp()) / "agents.yaml"
            agents.write_text("- name: replay\n  _target_: gem_verl.conformance.Replay\n")
            settings.append(f"actor_rollout_ref.rollout.agent.agent_loop_config_path={agents}")
            settings.append("actor_rollout_ref.rollout.agent.default_agent_loop=replay")
        composed = hydra_config(self.config, [*settings, *self.more_settings])
        with open_dict(composed):
            OmegaConf.resolve(composed)
        return composed

    @cached_property
    def trainer(self) -> Any:
        import ray
        import transfer_queue as tq
        from verl.trainer.ppo.v1 import get_trainer_cls

        if not ray.is_initialized():
            ray.init(
                address="local",
                num_cpus=4,
                include_dashboard=False,
                log_to_driver=False,
                logging_level="ERROR",
            )
        tq.init(self.settings.transfer_queue)
        trainer = get_trainer_cls(self.settings.trainer.v1.trainer_mode)(self.settings)
        trainer.replay_buffer.poll_interval = 0.02
        return trainer

    @cached_property
    def _inline_manager(self) -> Any:
        """verl's manager with one worker in this process."""
        from verl.trainer.ppo.v1 import AgentLoopManagerTQ, AgentLoopWorkerTQ

        actor: Any = AgentLoopWorkerTQ
        worker = actor.__ray_metadata__.modified_class(self.trainer.config, self.client)

        class InlineManager(AgentLoopManagerTQ):
            def generate_sequences(self, prompts: Any) -> None:
                async def generate() -> None:
                    await worker.generate_sequences(prompts)
                    await asyncio.gather(*worker.background_tasks)

                asyncio.run(generate())

        return InlineManager(self.trainer.config, None)

    @cached_property
    def _process_manager(self) -> Any:
        """verl's manager with two worker processes."""
        from verl.trainer.ppo.v1 import AgentLoopManagerTQ

        return AgentLoopManagerTQ.create(self.trainer.config, None)


def harness() -> VerlHarness:
    """Return the harness that `gem-rl conformance verl` runs."""
    return VerlHarness()


def set_algorithm(settings: Any, estimator: str, gamma: float) -> None:
    """Select one of gem's estimators in verl's settings."""
    settings.algorithm.adv_estimator, settings.algorithm.gamma = PREFIX + estimator, gamma
    settings.critic.enable = True if "values" in estimators.get(estimator).needs else None


def golden_columns(
    case: Case, episodes: Sequence[Episode], prompts: Sequence[Sequence[int]]
) -> dict[str, list[Any]]:
    """Return the columns of a dataset with one row per prompt, which carries its episodes."""
    fields = [
        {
            "episodes": pickle.dumps([episodes[i] for i in members]),
            "estimator": case.estimator,
            "gamma": case.gamma,
        }
        for members in prompts
    ]
    return {
        "uid": [str(number) for number in range(len(prompts))],
        "raw_prompt": [[{"role": "user", "content": "golden"}] for _ in prompts],
        "extra_info": [{"gem": item} for item in fields],
        "index": list(range(len(prompts))),
    }


def objects(column: Sequence[Any]) -> Any:
    """Return a numpy array of objects, as in verl's batches."""
    array: Any = np.empty(len(column), dtype=object)
    array[:] = column
    return array


def tails_of(batch: Any, values: bool) -> dict[str, int]:
    """Return the number of ids that follow each played sequence, for a bootstrap value."""
    sequences = read_batch(batch, values=values).sequences
    ids = stored(batch, "input_ids")["input_ids"]
    return {
        key: len(all_ids) - len(sequence.ids)
        for key, all_ids, sequence in zip(batch.keys, ids, sequences)
        if sequence.spans  # padding has none
    }


def trained_sequence(fields: Mapping[str, Any], tail: int = 0) -> TrainedSequence:
    """Return one sequence from verl's tensors, without its tail."""
    if tail:
        fields = {k: v if k == "prompts" else v[:-tail] for k, v in fields.items()}
    zeros, logprobs = [0.0] * len(fields["prompts"]), fields.get("rollout_log_probs")
    return TrainedSequence(
        ids=[*fields["prompts"].tolist(), *fields["responses"].tolist()],
        mask=[*map(int, zeros), *fields["response_mask"].tolist()],
        advantages=[*zeros, *fields["advantages"].tolist()],
        logprobs=None if logprobs is None else [*zeros, *logprobs.tolist()],
        rewards=[*zeros, *fields["rm_scores"].tolist()],
    )
