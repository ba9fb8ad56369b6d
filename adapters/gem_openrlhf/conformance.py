"""Conformance: golden episodes through OpenRLHF's own code, from the samples generator to the training step of the actor.

Only the ends are ours: an engine that hands over episodes that exist, and in the place of DeepSpeed, ranks that keep what
they are sent and compute a plain gradient. What is between them is OpenRLHF's: `SamplesGenerator`, `RemoteExperienceMaker` with
our advantages, `RayActorGroup`, which deals the batch out to ranks in processes of their own, `Actor` and `PolicyLoss`.
"""

from __future__ import annotations

import asyncio
import runpy
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import openrlhf.utils
import ray
from openrlhf.models import Actor, PolicyLoss
from openrlhf.trainer.ppo_utils.experience import make_experience_batch, remove_padding_in_sequences, split_experience_batch
from openrlhf.trainer.ppo_utils.kl_controller import FixedKLController
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator
from openrlhf.trainer.ray.launcher import BaseModelActor, RayActorGroup
from openrlhf.utils.agent import AgentExecutorBase
from openrlhf.utils.loss_utils import iter_grad_accum_global_norm
from ray.util.placement_group import placement_group
from transformers import AutoTokenizer

from gem_core.adapter_kit.conformance.golden import END, Case
from gem_core.adapter_kit.conformance.harness import TrainedSequence
from gem_core.policies.tiny import load_tiny, tiny_model_path
from gem_core.types import Episode
from gem_openrlhf import ADAPTER
from gem_openrlhf.advantage import GemExperienceMaker
from gem_openrlhf.config import GemConfig
from gem_openrlhf.convert import to_response
from gem_openrlhf.trainer import GemActorTrainer

__all__ = ["OpenRLHFHarness", "harness", "read_args"]

_LONGEST = 256
_FLAGS = (
    *("--actor.model_name_or_path", str(tiny_model_path()), "--actor.num_gpus_per_node", "1", "--vllm.num_engines", "1"),
    *("--train.agent_func_path", "agent.py", "--data.max_len", str(_LONGEST), "--rollout.micro_batch_size", "2"),
    *("--algo.advantage.estimator", "reinforce", "--algo.kl.init_coef", "0"),
)


class OpenRLHFHarness:
    """The tiny model on the CPU, in float32; ranks are Ray actors."""

    adapter = ADAPTER
    carries = frozenset({"logprobs", "total"})

    def __init__(self) -> None:
        self.version = version("openrlhf")
        self._groups: dict[int, Any] = {}

    def train(self, case: Case) -> list[TrainedSequence]:
        return self._deal(case, case.episodes, ranks=1)[0]

    def gradient(self, case: Case) -> Mapping[str, Any]:
        self._deal(case, case.episodes, ranks=1)
        (found,) = ray.get(self._groups[1].async_run_method("gradient"))
        return dict(found)

    def gradient_factor(self, case: Case) -> float:
        """`token-mean`, OpenRLHF's default, divides by the trained tokens of the whole update: the canonical weighting."""
        return 1.0

    def ranks(self, case: Case, parts: Sequence[Sequence[Episode]]) -> list[list[TrainedSequence]]:
        """Processes of their own, to which OpenRLHF deals a batch out in equal chunks, in order."""
        return self._deal(case, [episode for part in parts for episode in part], ranks=len(parts))

    def _deal(self, case: Case, episodes: Sequence[Episode], ranks: int) -> list[list[TrainedSequence]]:
        """What each rank is sent to train on."""
        group = self._group(ranks)
        experiences = self._experiences(case, episodes, group, rows=2 if ranks == 1 and len(episodes) > 1 else 1)
        ray.get(group.async_run_method_batch(method_name="append", experience=experiences))
        return [list(rows) for rows in ray.get(group.async_run_method("rows"))]

    def _experiences(self, case: Case, episodes: Sequence[Episode], group: Any, rows: int) -> list[Any]:
        """What OpenRLHF's own code makes of the episodes, up to what it sends to the ranks."""
        args = read_args(*_FLAGS, "--rollout.batch_size", str(len(episodes)), "--rollout.micro_batch_size", str(rows))
        args.algo.advantage.is_correction_level = "token"  # so that logprobs are carried
        spec = GemConfig("game:GuessTheNumber-v0-easy", advantage=case.estimator, gamma=case.gamma, estimator_kwargs=case.arguments)
        tokenizer = AutoTokenizer.from_pretrained(tiny_model_path())
        strategy, engine = SimpleNamespace(args=args), _Engine(_Replay(spec, episodes))
        prompts = [(["golden"], [f"golden {i}"], [str(i)], [None]) for i in range(len(episodes))]
        samples, _, _, _ = SamplesGenerator(strategy, prompts, None, tokenizer, [engine]).generate_samples(max_len=_LONGEST)
        samples.sort(key=lambda sample: int(sample.labels[0].label))  # they come in the order in which they are finished
        maker = GemExperienceMaker(group, None, None, None, FixedKLController(0.0), strategy, tokenizer)
        return list(maker.make_experience_batch(samples))

    def _group(self, ranks: int) -> Any:
        if not ray.is_initialized():
            ray.init(address="local", num_cpus=4, num_gpus=0, include_dashboard=False, log_to_driver=False)
        if ranks not in self._groups:
            places = placement_group([{"CPU": 1}] * ranks)
            ray.get(places.ready())
            self._groups[ranks] = RayActorGroup(1, ranks, _Rank, pg=places, num_gpus_per_actor=0)
        return self._groups[ranks]


def harness() -> OpenRLHFHarness:
    """What `gem-rl conformance openrlhf` runs."""
    return OpenRLHFHarness()


def read_args(*flags: str) -> Any:
    """What OpenRLHF itself makes of flags, its defaults and checks included. Ray has to run."""

    class Read(Exception):
        pass

    def stop(args: Any) -> None:
        raise Read(args)

    argv, get_strategy = sys.argv, openrlhf.utils.get_strategy
    sys.argv, openrlhf.utils.get_strategy = ["train_ppo_ray", *flags], stop
    try:
        runpy.run_module("openrlhf.cli.train_ppo_ray", run_name="__main__")
    except Read as read:
        return read.args[0]
    finally:
        sys.argv, openrlhf.utils.get_strategy = argv, get_strategy
    raise AssertionError("train_ppo_ray came to its end without asking for a strategy")


class _Replay(AgentExecutorBase):  # type: ignore[misc]
    """An executor that plays nothing: it hands over episodes that exist."""

    def __init__(self, spec: GemConfig, episodes: Sequence[Episode]) -> None:
        self.spec, self.episodes = spec, episodes

    async def execute(self, prompt: str, label: str, **_: Any) -> dict[str, Any]:
        return to_response(prompt, label, self.spec, self.episodes[int(label)], END, logprobs=True)


class _Engine:
    """Looks like one of OpenRLHF's vLLM actors to the samples generator; answers at once, by way of Ray's object store."""

    def __init__(self, executor: AgentExecutorBase) -> None:
        self.get_num_unfinished_requests = SimpleNamespace(remote=lambda: ray.put(0))
        self.generate_responses = SimpleNamespace(remote=self._generate)
        self._executor = executor

    def _generate(self, num_samples: int, **given: Any) -> Any:
        async def play() -> list[Any]:
            return [await self._executor.execute(**given) for _ in range(num_samples)]

        return ray.put(asyncio.run(play()))


class _Held(BaseModelActor):  # type: ignore[misc]
    """A rank: the model, and what it was sent."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        model, _ = load_tiny()
        self.actor = Actor(model)
        self.actor.packing_samples = False
        self.strategy = SimpleNamespace(is_rank_0=lambda: False, ring_attn_group=None, get_grad_norm=lambda actor: 0.0)
        self.items: list[Any] = []
        self.fresh = True

    def forward(self, sequences: Any, action_mask: Any, attention_mask: Any, mm_train_inputs_list: Any = None) -> Any:
        self.fresh = True
        return self.actor(sequences, action_mask, attention_mask).detach()

    def append(self, experience: Any) -> None:
        """As the replay buffer does; a new batch begins after a forward."""
        if self.fresh:
            self.items, self.fresh = [], False
        self.items += remove_padding_in_sequences(split_experience_batch(experience))

    def rows(self) -> list[TrainedSequence]:
        """What there is to train on, without the padding."""
        return [
            TrainedSequence(
                ids=item.sequences.tolist(),
                mask=[0, *item.action_mask.tolist()],
                advantages=[0.0, *item.advantages.tolist()],
                logprobs=[0.0, *item.rollout_log_probs.tolist()],
                total=float(item.rewards),
            )
            for item in self.items
        ]

    def gradient(self) -> dict[str, Any]:
        """Of one update over all there is, in two micro-batches, by OpenRLHF's own training step."""
        half = (len(self.items) + 1) // 2
        batches = [make_experience_batch(part) for part in (self.items[:half], self.items[half:])]
        trainer = GemActorTrainer.__new__(GemActorTrainer)  # without the process group and the replay buffer on a GPU
        trainer.actor, trainer.ema_model, trainer.actor_optim, trainer.aux_loss = self.actor, None, None, False
        trainer.actor_scheduler = SimpleNamespace(get_last_lr=lambda: [0.0])
        trainer.actor_loss_fn = PolicyLoss()
        trainer.args = SimpleNamespace(
            actor=SimpleNamespace(entropy_coef=None),
            algo=SimpleNamespace(kl=SimpleNamespace(use_loss=False)),
            train=SimpleNamespace(dynamic_batch_enable=False),
        )
        trainer.strategy = self.strategy
        # DeepSpeed divides the loss by the number of micro-batches, for which OpenRLHF multiplies beforehand
        self.strategy.backward = lambda loss, actor, optimizer: (loss / len(batches)).backward()
        self.strategy.optimizer_step = lambda *args, **kwargs: None
        self.actor.zero_grad(set_to_none=True)
        micro_batches = iter_grad_accum_global_norm(batches, self.strategy, len(batches), lambda batch: batch.action_mask)
        for step, (batch, info) in enumerate(micro_batches):
            trainer.training_step(batch, 0.0, step, info)
        return {name: p.grad.clone() for name, p in self.actor.model.named_parameters() if p.grad is not None}


_Rank = ray.remote(_Held)
