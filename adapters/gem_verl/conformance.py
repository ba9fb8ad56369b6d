"""Conformance: golden episodes through verl's own agent loop workers, TransferQueue, trainer and loss.

On a small Ray cluster of its own, verl's default trainer (V1) submits prompts to its workers, whose agent loop hands over an
episode that exists instead of playing one; what comes out of the replay buffer is padded, credited and put back as in training.
Only the engine, which needs a GPU, is left out: the gradient is that of verl's loss on a model of transformers.
"""

from __future__ import annotations

import asyncio
import pickle
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gem_core.adapter_kit.conformance.golden import Case
from gem_core.adapter_kit.conformance.harness import TrainedSequence
from gem_core.policies.tiny import load_tiny, tiny_model_path
from gem_core.types import Episode
from gem_verl import ADAPTER
from gem_verl.config import PREFIX, GemConfig, check_config
from gem_verl.rollout import GemAgentLoop

__all__ = ["LegacyHarness", "Replay", "VerlHarness", "harness"]

_MULTIPLE = 4
"""verl fills a batch up to whole mini-batches with rows that train nothing."""
_FIELDS = ["prompts", "responses", "response_mask", "advantages", "rm_scores", "rollout_log_probs"]


class Replay(GemAgentLoop):
    """An agent loop that plays nothing: it hands over an episode that exists, credited as its row says."""

    async def play(self, server: Any, row: dict[str, Any], step: int) -> Episode:
        carried = row["extra_info"]["gem"]
        _set_algorithm(self.config, carried["estimator"], carried["gamma"])
        episodes: list[Episode] = pickle.loads(carried["episodes"])
        return episodes[int(row.get("session_id", 0))]


class VerlHarness:
    """verl's default trainer, without its workers for training."""

    adapter = ADAPTER
    carries = frozenset({"logprobs", "rewards"})
    legacy = False

    def __init__(self, spec: GemConfig | None = None, client: Any = None, settings: Sequence[str] = ()) -> None:
        """`spec`, `client` and `settings`: an environment to play with a server's client, in place of golden episodes."""
        self.version = version("verl")
        self.spec = spec or GemConfig("game:GuessTheNumber-v0-easy", seeds=64, gamma=0.9)
        self.client, self.settings = client, list(settings)
        self._step = 0

    def train(self, case: Case) -> list[TrainedSequence]:
        return [row for _, row in self._replayed(case, case.episodes)]

    def gradient(self, case: Case) -> Mapping[str, Any]:
        """Of verl's PPO loss at ratio 1, on logits of the tiny model."""
        from tensordict import TensorDict
        from verl.utils.config import omega_conf_to_dataclass
        from verl.utils.torch_functional import logprobs_from_logits
        from verl.workers.utils.losses import ppo_loss

        rows = self.train(case)
        starts = [next((i for i, m in enumerate(row.mask) if m), len(row.ids) - 1) for row in rows]  # a placeholder's: one token
        model = load_tiny()[0].float().train()
        found = []
        for row in rows:
            ids = torch.tensor([row.ids])
            # verl's engines give each place the logprob of the token after it; the last one has none and is not looked at
            found.append(logprobs_from_logits(model(input_ids=ids).logits[0], torch.roll(ids[0], -1)))
        log_probs = torch.nested.as_nested_tensor(found, layout=torch.jagged)

        def nested(parts: list[list[Any]], dtype: Any) -> Any:
            return torch.nested.as_nested_tensor([torch.tensor(p, dtype=dtype) for p in parts], layout=torch.jagged)

        data = TensorDict(
            {
                "prompts": nested([list(r.ids[:s]) for r, s in zip(rows, starts)], torch.int64),
                "responses": nested([list(r.ids[s:]) for r, s in zip(rows, starts)], torch.int64),
                "response_mask": nested([list(r.mask[s:]) for r, s in zip(rows, starts)], torch.int64),
                "advantages": nested([list(r.advantages[s:]) for r, s in zip(rows, starts)], torch.float32),
                "old_log_probs": torch.nested.as_nested_tensor(
                    [p.detach()[s - 1 : -1] for p, s in zip(found, starts)], layout=torch.jagged
                ),
            },
            batch_size=len(rows),
        )
        for name, value in (
            ("dp_size", 1),
            ("batch_num_tokens", sum(sum(r.mask) for r in rows)),
            ("global_batch_size", len(rows)),
        ):
            data.set_non_tensor(name, value)
        loss, _ = ppo_loss(omega_conf_to_dataclass(self.config.actor_rollout_ref.actor), {"log_probs": log_probs}, data)
        loss.backward()
        return {name: p.grad.detach().clone() for name, p in model.named_parameters() if p.grad is not None}

    def gradient_factor(self, case: Case) -> float:
        """`token-mean` divides by the trained tokens of the whole update: the canonical weighting."""
        return 1.0

    def ranks(self, case: Case, parts: Sequence[Sequence[Episode]]) -> list[list[TrainedSequence]]:
        """Two worker processes, as verl's manager starts them. A prompt is one worker's, and credit is computed in one place."""
        episodes = [episode for part in parts for episode in part]
        rows = self._replayed(case, episodes, self._outside)
        return [[row for place, row in rows if (place < len(parts[0])) is first] for first in (True, False)]

    def credit(self, columns: Mapping[str, Sequence[Any]], manager: Any = None) -> dict[str, TrainedSequence]:
        """What verl's trainer makes of prompts: each row by its key, as the loss would get it, padding left out."""
        import transfer_queue as tq
        from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size
        from verl.utils import tensordict_utils as tu

        trainer = self.trainer
        self._step += 1
        trainer.global_steps, trainer.agent_loop_manager = self._step, manager or self._inside
        batch = tu.get_tensordict({name: _objects(column) for name, column in columns.items()})
        tu.assign_non_tensor_data(batch, "global_steps", self._step)
        try:
            trainer._submit_batch_to_rollout(batch)
            drawn, _ = trainer.replay_buffer.sample(self._step, "train", len(batch))
            drawn = upsample_batch_to_divisible_size(drawn, _MULTIPLE, 2)
            sampled = tq.kv_batch_get(keys=drawn.keys, partition_id="train", select_fields=["rollout_log_probs"])
            sampled["old_log_probs"] = sampled.pop("rollout_log_probs")  # the trainer's model is the one that sampled
            tq.kv_batch_put(keys=drawn.keys, partition_id="train", fields=sampled)
            self.metrics: dict[str, Any] = {}
            trainer._compute_advantage(drawn, self.metrics)
            stored = tq.kv_batch_get(keys=drawn.keys, partition_id="train", select_fields=_FIELDS)
            self.tags = dict(zip(drawn.keys, drawn.tags))
        finally:
            left = tq.kv_list("train").get("train", {})
            if left:
                tq.kv_clear(keys=list(left), partition_id="train")
        return {
            key: _trained({name: stored[name][place] for name in _FIELDS})
            for place, (key, tag) in enumerate(zip(drawn.keys, drawn.tags))
            if not tag.get("is_padding", False)
        }

    def _replayed(self, case: Case, episodes: Sequence[Episode], manager: Any = None) -> list[tuple[int, TrainedSequence]]:
        """(place of the episode, row) of golden episodes. Those of one group are the sessions of one prompt, as verl has it."""
        _set_algorithm(self.trainer.config, case.estimator, case.gamma)
        check_config(self.trainer.config)
        groups: dict[Any, list[int]] = {}
        for i, episode in enumerate(episodes):
            groups.setdefault(episode.group, []).append(i)
        prompts = list(groups.values())
        columns = _columns(case, episodes, prompts)
        columns["__rollout_n__"] = [len(members) for members in prompts]
        found = []
        for key, row in self.credit(columns, manager).items():
            uid, session, number = key.rsplit("_", 2)
            found.append((prompts[int(uid)][int(session)], int(number), row))
        return [(place, row) for place, _, row in sorted(found, key=lambda item: item[:2])]

    @cached_property
    def config(self) -> Any:
        from hydra import compose, initialize_config_module
        from omegaconf import OmegaConf, open_dict

        settings = [
            f"actor_rollout_ref.model.path={tiny_model_path()}",
            "actor_rollout_ref.rollout.agent.num_workers=2",
            "actor_rollout_ref.rollout.name=vllm",
            "actor_rollout_ref.rollout.n=2",  # for estimators that compare; a prompt of golden episodes says how many it has
            "actor_rollout_ref.rollout.calculate_log_probs=True",
            "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8",
            "data.max_prompt_length=64",
            "data.max_response_length=128",
            "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
            f"trainer.use_v1={not self.legacy}",
        ]
        if self.client is None:
            agents = Path(tempfile.mkdtemp()) / "agents.yaml"
            agents.write_text("- name: replay\n  _target_: gem_verl.conformance.Replay\n")
            settings.append(f"actor_rollout_ref.rollout.agent.agent_loop_config_path={agents}")
            settings.append("actor_rollout_ref.rollout.agent.default_agent_loop=replay")
        with initialize_config_module("verl.trainer.config", version_base=None):
            found = compose("ppo_trainer", overrides=[*self.spec.overrides(), *settings, *self.settings])
        with open_dict(found):
            OmegaConf.resolve(found)
        return found

    @cached_property
    def trainer(self) -> Any:
        import ray
        import transfer_queue as tq
        from verl.trainer.ppo.v1 import get_trainer_cls

        if not ray.is_initialized():
            ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        tq.init(self.config.transfer_queue)
        trainer = get_trainer_cls(self.config.trainer.v1.trainer_mode)(self.config)
        trainer.replay_buffer.poll_interval = 0.02
        return trainer

    @cached_property
    def _inside(self) -> Any:
        """verl's manager, with a worker in this process."""
        from verl.trainer.ppo.v1 import AgentLoopManagerTQ, AgentLoopWorkerTQ

        worker = AgentLoopWorkerTQ.__ray_metadata__.modified_class(self.trainer.config, self.client)

        class Inside(AgentLoopManagerTQ):  # type: ignore[misc]
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


class LegacyHarness(VerlHarness):
    """verl's legacy trainer (V0), whose workers gem replaces: one row per episode."""

    adapter = replace(ADAPTER, capabilities=replace(ADAPTER.capabilities, several_sequences=False))
    legacy = True

    def train(self, case: Case) -> list[TrainedSequence]:
        from verl.protocol import DataProto
        from verl.trainer.ppo.ray_trainer import compute_advantage

        config = self.config
        _set_algorithm(config, case.estimator, case.gamma)
        check_config(config)
        columns = _columns(case, case.episodes, [[i] for i in range(len(case.episodes))])
        columns["uid"] = [str(episode.group) for episode in case.episodes]
        batch = DataProto(
            batch=None, non_tensor_batch={n: _objects(c) for n, c in columns.items()}, meta_info={"global_steps": 1}
        )
        played = asyncio.run(self.worker.generate_sequences(batch))
        played.batch["token_level_rewards"] = played.batch["rm_scores"]
        played.non_tensor_batch["uid"] = _objects(columns["uid"])
        algorithm = config.algorithm
        data = compute_advantage(played, adv_estimator=algorithm.adv_estimator, gamma=algorithm.gamma, config=algorithm)
        width = data.batch["prompts"].shape[1]
        rows = []
        for i in range(len(case.episodes)):
            real = data.batch["attention_mask"][i].bool()
            fields = {name: data.batch[name][i][real[width:]] for name in _FIELDS[1:]}
            rows.append(_trained({**fields, "prompts": data.batch["prompts"][i][real[:width]]}))
        return rows

    @cached_property
    def worker(self) -> Any:
        from gem_verl.worker import GemAgentLoopWorker

        return GemAgentLoopWorker(self.config, self.client)


def harness() -> VerlHarness:
    """What `gem-rl conformance verl` runs."""
    return VerlHarness()


def _set_algorithm(config: Any, estimator: str, gamma: float) -> None:
    config.algorithm.adv_estimator, config.algorithm.gamma = PREFIX + estimator, gamma


def _columns(case: Case, episodes: Sequence[Episode], prompts: Sequence[Sequence[int]]) -> dict[str, list[Any]]:
    """Rows of a data set, one per prompt, that carry the episodes to be played from it."""
    carried = [
        {"episodes": pickle.dumps([episodes[i] for i in members]), "estimator": case.estimator, "gamma": case.gamma}
        for members in prompts
    ]
    return {
        "uid": [str(number) for number in range(len(prompts))],
        "raw_prompt": [[{"role": "user", "content": "golden"}] for _ in prompts],
        "extra_info": [{"gem": item} for item in carried],
        "index": list(range(len(prompts))),
    }


def _objects(column: Sequence[Any]) -> Any:
    found = np.empty(len(column), dtype=object)
    found[:] = column
    return found


def _trained(fields: Mapping[str, Any]) -> TrainedSequence:
    nothing = [0] * len(fields["prompts"])
    return TrainedSequence(
        ids=[*fields["prompts"].tolist(), *fields["responses"].tolist()],
        mask=[*nothing, *fields["response_mask"].tolist()],
        advantages=[*map(float, nothing), *fields["advantages"].tolist()],
        logprobs=[*map(float, nothing), *fields["rollout_log_probs"].tolist()],
        rewards=[*map(float, nothing), *fields["rm_scores"].tolist()],
    )
