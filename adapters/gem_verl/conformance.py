"""Conformance: golden episodes through verl's own agent loop workers, TransferQueue, trainer and loss.

On a small Ray cluster, verl's default trainer (V1) submits prompts to its workers, whose agent loop hands over existing
episodes; the batch from the replay buffer is padded, gets its advantages and is stored as in training. Only the training
engine, which needs a GPU, is replaced: the gradient is that of verl's loss on a transformers model.
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

from gem_core.adapter_kit.conformance.golden import Case
from gem_core.adapter_kit.conformance.harness import Harness, TrainedSequence
from gem_core.policies.tiny import load_tiny, tiny_model_path
from gem_core.types import Episode
from gem_verl import ADAPTER
from gem_verl.config import PREFIX, GemConfig, check_settings, hydra_config, read_config
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

_MULTIPLE = 4
"""verl pads a batch to whole mini-batches."""
FIELDS = ["prompts", "responses", "response_mask", "advantages", "rm_scores", "rollout_log_probs"]


class Replay(GemAgentLoop):
    """An agent loop that hands over an existing episode, with the estimator its row names."""

    async def episode(self, engine: EnginePolicy, row: dict[str, Any], step: int) -> Episode:
        carried = row["extra_info"]["gem"]
        set_algorithm(self.config, carried["estimator"], carried["gamma"])
        episodes: list[Episode] = pickle.loads(carried["episodes"])
        return episodes[int(row.get("session_id", 0))]


class VerlHarness(Harness):
    """verl's default trainer, without its training workers."""

    adapter = ADAPTER
    carries = frozenset({"logprobs", "rewards"})

    def __init__(
        self, config: GemConfig | None = None, client: Any = None, settings: Sequence[str] = ()
    ) -> None:
        """`config`, `client` and `settings`: an environment to play with a server's client, instead of golden episodes."""
        self.config = config or GemConfig("game:GuessTheNumber-v0-easy", seeds=64, gamma=0.9)
        self.client, self.more_settings = client, list(settings)
        self._step = 0

    def train(self, case: Case) -> list[TrainedSequence]:
        return [sequence for _, sequence in self._replayed(case, case.episodes)]

    def gradient(self, case: Case) -> Mapping[str, Any]:
        """The gradient of verl's PPO loss at ratio 1, on logits of the tiny model."""
        from tensordict import TensorDict
        from verl.utils.config import omega_conf_to_dataclass
        from verl.utils.torch_functional import logprobs_from_logits
        from verl.workers.utils.losses import ppo_loss

        rows = self.train(case)
        starts = [next((i for i, m in enumerate(row.mask) if m), len(row.ids) - 1) for row in rows]
        model = load_tiny()[0].float().train()
        per_row = []
        for row in rows:
            ids = torch.tensor([row.ids])
            # verl's engines give each position the logprob of the next token; the last has none and is not read
            per_row.append(
                logprobs_from_logits(model(input_ids=ids).logits[0], torch.roll(ids[0], -1))
            )

        def nested(parts: Sequence[Any], dtype: Any = torch.int64) -> Any:
            return torch.nested.as_nested_tensor(
                [torch.as_tensor(p, dtype=dtype) for p in parts], layout=torch.jagged
            )

        data = TensorDict(
            {
                "prompts": nested([r.ids[:s] for r, s in zip(rows, starts)]),
                "responses": nested([r.ids[s:] for r, s in zip(rows, starts)]),
                "response_mask": nested([r.mask[s:] for r, s in zip(rows, starts)]),
                "advantages": nested(
                    [r.advantages[s:] for r, s in zip(rows, starts)], torch.float32
                ),
                "old_log_probs": nested(
                    [p.detach()[s - 1 : -1] for p, s in zip(per_row, starts)], torch.float32
                ),
            },
            batch_size=len(rows),
        )
        for name, value in (
            ("dp_size", 1),
            (
                "batch_num_tokens",
                sum(sum(r.mask) for r in rows),
            ),  # `token-mean`: the canonical weighting
            ("global_batch_size", len(rows)),
        ):
            data.set_non_tensor(name, value)
        output = {"log_probs": nested(per_row, torch.float32)}
        loss, _ = ppo_loss(
            omega_conf_to_dataclass(self.settings.actor_rollout_ref.actor), output, data
        )
        loss.backward()
        return {
            name: p.grad.detach().clone()
            for name, p in model.named_parameters()
            if p.grad is not None
        }

    def ranks(self, case: Case, parts: Sequence[Sequence[Episode]]) -> list[list[TrainedSequence]]:
        """Two worker processes, as verl's manager starts them. One worker plays a prompt; the trainer computes advantages."""
        episodes = [episode for part in parts for episode in part]
        sequences = self._replayed(case, episodes, self._outside)
        return [
            [sequence for place, sequence in sequences if (place < len(parts[0])) is first]
            for first in (True, False)
        ]

    def sequences(
        self, columns: Mapping[str, Sequence[Any]], manager: Any = None
    ) -> dict[str, TrainedSequence]:
        """What verl's trainer makes of prompts: each sequence by its key, as the loss would get it, without padding."""
        import transfer_queue as tq
        from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size
        from verl.utils import tensordict_utils as tu

        trainer = self.trainer
        self._step += 1
        trainer.global_steps, trainer.agent_loop_manager = self._step, manager or self._inside
        prompts = tu.get_tensordict({name: objects(column) for name, column in columns.items()})
        tu.assign_non_tensor_data(prompts, "global_steps", self._step)
        try:
            trainer._submit_batch_to_rollout(prompts)
            batch, _ = trainer.replay_buffer.sample(self._step, "train", len(prompts))
            batch = upsample_batch_to_divisible_size(batch, _MULTIPLE, 2)
            sampled = tq.kv_batch_get(
                keys=batch.keys, partition_id="train", select_fields=["rollout_log_probs"]
            )
            sampled["old_log_probs"] = sampled.pop(
                "rollout_log_probs"
            )  # the trainer's model is the one that sampled
            tq.kv_batch_put(keys=batch.keys, partition_id="train", fields=sampled)
            self.metrics: dict[str, Any] = {}
            trainer._compute_advantage(batch, self.metrics)
            stored = tq.kv_batch_get(keys=batch.keys, partition_id="train", select_fields=FIELDS)
            self.tags = dict(zip(batch.keys, batch.tags))
        finally:
            remaining = tq.kv_list("train").get("train", {})
            if remaining:
                tq.kv_clear(keys=list(remaining), partition_id="train")
        return {
            key: trained_sequence({name: stored[name][place] for name in FIELDS})
            for place, (key, tag) in enumerate(zip(batch.keys, batch.tags))
            if not tag.get("is_padding", False)
        }

    def _replayed(
        self, case: Case, episodes: Sequence[Episode], manager: Any = None
    ) -> list[tuple[int, TrainedSequence]]:
        """(index of the episode, sequence) of golden episodes. Those of one group are the sessions of one prompt, as in verl."""
        trainer = self.trainer
        set_algorithm(trainer.config, case.estimator, case.gamma)
        check_settings(trainer.config, read_config(trainer.config))
        trainer.gem_config = replace(
            self.config, advantage=case.estimator, gamma=case.gamma, estimator_kwargs=case.arguments
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
        return [
            (place, sequence) for place, _, sequence in sorted(sequences, key=lambda item: item[:2])
        ]

    @cached_property
    def settings(self) -> Any:
        from omegaconf import OmegaConf, open_dict

        settings = [
            f"actor_rollout_ref.model.path={tiny_model_path()}",
            "actor_rollout_ref.rollout.agent.num_workers=2",
            "actor_rollout_ref.rollout.name=vllm",
            "actor_rollout_ref.rollout.n=2",  # for estimators that compare; a prompt of golden episodes has its own number
            "actor_rollout_ref.rollout.calculate_log_probs=True",
            "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8",
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
    def _inside(self) -> Any:
        """verl's manager, with a worker in this process."""
        from verl.trainer.ppo.v1 import AgentLoopManagerTQ, AgentLoopWorkerTQ

        actor: Any = AgentLoopWorkerTQ
        worker = actor.__ray_metadata__.modified_class(self.trainer.config, self.client)

        class Inside(AgentLoopManagerTQ):
            def generate_sequences(self, prompts: Any) -> None:
                async def generate() -> None:
                    await worker.generate_sequences(prompts)
                    await asyncio.gather(*worker.background_tasks)

                asyncio.run(generate())

        return Inside(self.trainer.config, None)

    @cached_property
    def _outside(self) -> Any:
        """verl's manager, with two workers in processes of their own."""
        from verl.trainer.ppo.v1 import AgentLoopManagerTQ

        return AgentLoopManagerTQ.create(self.trainer.config, None)


def harness() -> VerlHarness:
    """What `gem-rl conformance verl` runs."""
    return VerlHarness()


def set_algorithm(settings: Any, estimator: str, gamma: float) -> None:
    """Select one of gem's estimators in verl's settings."""
    settings.algorithm.adv_estimator, settings.algorithm.gamma = PREFIX + estimator, gamma


def golden_columns(
    case: Case, episodes: Sequence[Episode], prompts: Sequence[Sequence[int]]
) -> dict[str, list[Any]]:
    """Rows of a data set, one per prompt, that carry the episodes to hand over."""
    carried = [
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
        "extra_info": [{"gem": item} for item in carried],
        "index": list(range(len(prompts))),
    }


def objects(column: Sequence[Any]) -> Any:
    """A numpy array of objects, as verl's batches hold them."""
    array: Any = np.empty(len(column), dtype=object)
    array[:] = column
    return array


def trained_sequence(fields: Mapping[str, Any]) -> TrainedSequence:
    """One sequence from verl's tensors."""
    nothing = [0] * len(fields["prompts"])
    return TrainedSequence(
        ids=[*fields["prompts"].tolist(), *fields["responses"].tolist()],
        mask=[*nothing, *fields["response_mask"].tolist()],
        advantages=[*map(float, nothing), *fields["advantages"].tolist()],
        logprobs=[*map(float, nothing), *fields["rollout_log_probs"].tolist()],
        rewards=[*map(float, nothing), *fields["rm_scores"].tolist()],
    )
