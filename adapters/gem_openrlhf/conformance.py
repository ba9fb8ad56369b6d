"""Conformance: runs the golden episodes through OpenRLHF's own code.

The harness replaces both ends: the engine returns recorded episodes or a script's tokens, and the
ranks store what they receive and compute a plain gradient without DeepSpeed. Everything between is
OpenRLHF's own code:
`SamplesGenerator`, `RemoteExperienceMaker` with gem's advantages, `RayActorGroup`, which splits the
batch over rank processes, `Actor` and `PolicyLoss`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import ray
import torch
from gem_conformance.golden import END, Case
from gem_conformance.harness import Harness, TrainedSequence
from gem_conformance.played import PlayedCase, answer, engine_reason
from openrlhf.models import Actor, PolicyLoss
from openrlhf.trainer.ppo_utils.experience import (
    make_experience_batch,
    remove_padding_in_sequences,
    split_experience_batch,
)
from openrlhf.trainer.ppo_utils.kl_controller import FixedKLController
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator
from openrlhf.trainer.ray.launcher import BaseModelActor, RayActorGroup
from openrlhf.utils.agent import AgentExecutorBase
from openrlhf.utils.loss_utils import iter_grad_accum_global_norm
from ray.util.placement_group import placement_group, remove_placement_group
from transformers import AutoTokenizer

from gem_core.adapter_kit.batch import sequences_or_padding
from gem_core.policies.tiny import load_tiny, tiny_model_path
from gem_core.types import Episode
from gem_openrlhf import ADAPTER
from gem_openrlhf.actors import GemActorTrainer
from gem_openrlhf.config import GemConfig, estimator_flag
from gem_openrlhf.convert import EpisodeLabel, to_batch
from gem_openrlhf.program import run_program
from gem_openrlhf.rollout import GemAgentExecutor
from gem_openrlhf.trainer import GemExperienceMaker

__all__ = ["OpenRLHFHarness", "RankActor", "harness", "read_args"]

_LONGEST = 256
_SETTINGS = {
    "--actor.model_name_or_path": tiny_model_path(),
    "--actor.num_gpus_per_node": 1,
    "--vllm.num_engines": 1,
    "--train.agent_func_path": "agent.py",
    "--data.max_len": _LONGEST,
    "--algo.kl.init_coef": 0,
    "--train.batch_size": 1,
}


class OpenRLHFHarness(Harness):
    """Harness for OpenRLHF: the tiny model. Ranks are Ray actors."""

    adapter = ADAPTER
    carries = frozenset({"logprobs", "total"})
    only_cpu = False

    def __init__(self, rank_class: type[RankActor] | None = None) -> None:
        """`rank_class`: a subclass of `RankActor` that loads the model with other settings."""
        self._rank_class = rank_class or RankActor
        self._groups: dict[int, Any] = {}
        self._places: list[Any] = []

    def close(self) -> None:
        """End the ranks, so that others can use their CPUs."""
        for places in self._places:
            remove_placement_group(places)

    def train(self, case: Case) -> list[TrainedSequence]:
        return self._split(case, case.episodes, ranks=1)[0]

    def gradient(self, case: Case) -> Mapping[str, Any]:
        """Return the gradient with OpenRLHF's default `token-mean`, the canonical weighting."""
        self._split(case, case.episodes, ranks=1)
        (gradient,) = ray.get(self._groups[1].async_run_method("gradient"))
        return dict(gradient)

    def ranks(self, case: Case, parts: Sequence[Sequence[Episode]]) -> list[list[TrainedSequence]]:
        """Run one Ray actor per part. OpenRLHF sends them equal chunks of the batch, in order."""
        return self._split(case, [episode for part in parts for episode in part], ranks=len(parts))

    def play(self, case: PlayedCase) -> list[Episode]:
        """Play on a scripted engine, through OpenRLHF's generator and gem's agent executor."""
        self._group(1)  # starts Ray
        config = GemConfig(**case.config)
        executor = GemAgentExecutor()
        engine = _Engine(executor, _ScriptedEngine(case.update, self.end_id))
        try:
            samples = self._samples(
                self._args(config, len(case.seeds), 1),
                engine,
                config.labels(case.seeds),
                self.max_context,
            )
        finally:
            executor.close()
        return [sample.labels[0].episode for sample in samples]

    def _split(
        self, case: Case, episodes: Sequence[Episode], ranks: int
    ) -> list[list[TrainedSequence]]:
        """Return the sequences that each rank receives."""
        group = self._group(ranks)
        micro_batch = 2 if ranks == 1 and len(episodes) > 1 else 1
        experiences = self._experiences(case, episodes, group, micro_batch)
        ray.get(group.async_run_method_batch(method_name="append", experience=experiences))
        return [list(sequences) for sequences in ray.get(group.async_run_method("sequences"))]

    def _experiences(
        self, case: Case, episodes: Sequence[Episode], group: Any, micro_batch: int
    ) -> list[Any]:
        """Run OpenRLHF's own code on the episodes, up to what it sends to the ranks."""
        arguments = {k: v for k, v in case.arguments.items() if k != "values"}
        config = GemConfig(
            "game:GuessTheNumber-v0-easy",
            advantage=case.estimator,
            gamma=case.gamma,
            estimator_kwargs=arguments,
        )
        args = self._args(config, len(episodes), micro_batch)
        labels = [str(i) for i in range(len(episodes))]
        samples = self._samples(args, _Engine(_Replay(config, episodes)), labels, _LONGEST)
        tokenizer = AutoTokenizer.from_pretrained(tiny_model_path())
        strategy: Any = SimpleNamespace(args=args)
        no_group: Any = None
        critic: Any = _Critic(episodes, case.arguments["values"]) if config.needs_values else None
        maker = GemExperienceMaker(
            group, critic, no_group, no_group, FixedKLController(0.0), strategy, tokenizer
        )
        return list(maker.make_experience_batch(samples))

    def _args(self, config: GemConfig, batch: int, micro_batch: int) -> Any:
        """Return OpenRLHF's settings."""
        settings = {
            **_SETTINGS,
            "--algo.advantage.estimator": estimator_flag(config),
            "--rollout.batch_size": batch,
            "--rollout.micro_batch_size": micro_batch,
        }
        args = read_args(*(str(part) for setting in settings.items() for part in setting))
        args.algo.advantage.is_correction_level = "token"  # the batch carries logprobs
        return args

    def _samples(
        self, args: Any, engine: _Engine, labels: Sequence[str], max_len: int
    ) -> list[Any]:
        """Let OpenRLHF's generator play the labels, and return its samples in their order."""
        strategy: Any = SimpleNamespace(args=args)
        prompts = [(["golden"], [str(i)], [label], [None]) for i, label in enumerate(labels)]
        tokenizer = AutoTokenizer.from_pretrained(tiny_model_path())
        generator = SamplesGenerator(strategy, prompts, None, tokenizer, [engine])
        samples, _, _, _ = generator.generate_samples(max_len=max_len)
        # samples arrive in the order in which they finish
        return sorted(samples, key=lambda sample: int(sample.prompts[0]))

    def _group(self, ranks: int) -> Any:
        gpus = int(self.device == "cuda")  # per rank
        if not ray.is_initialized():
            ray.init(
                address="local",
                num_cpus=4,
                num_gpus=gpus,
                include_dashboard=False,
                log_to_driver=False,
            )
        if ranks not in self._groups:
            places = placement_group([{"CPU": 1, **({"GPU": 1} if gpus else {})}] * ranks)
            ray.get(places.ready())
            self._places.append(places)
            group = RayActorGroup(
                1, ranks, ray.remote(self._rank_class), pg=places, num_gpus_per_actor=gpus
            )
            if gpus or self.bfloat16:
                ray.get(group.async_run_method("move", self.device, self.bfloat16))
            self._groups[ranks] = group
        return self._groups[ranks]


def harness() -> OpenRLHFHarness:
    """Return the harness that `gem-rl conformance openrlhf` runs."""
    return OpenRLHFHarness()


def read_args(*flags: str) -> Any:
    """Parse flags with OpenRLHF's own parser, defaults and checks. Ray must be running."""

    class Parsed(Exception):
        pass

    def stop(args: Any) -> None:
        raise Parsed(args)

    try:
        run_program(flags, stop)
    except Parsed as parsed:
        return parsed.args[0]
    raise AssertionError("train_ppo_ray ended without calling get_strategy")


class _Replay(AgentExecutorBase):
    """Agent executor that returns recorded episodes."""

    def __init__(self, config: GemConfig, recorded: Sequence[Episode]) -> None:
        self.config, self.recorded = config, recorded

    async def execute(self, prompt: str, label: str, *_: Any, **__: Any) -> dict[str, Any]:
        episode = self.recorded[int(label)]
        sequences = tuple(sequences_or_padding(episode, END))
        state = _cut_state(episode) if self.config.needs_values else ()
        played = EpisodeLabel(label, self.config, episode, sequences, state)
        return to_batch(prompt, played, logprobs=True)


class _Engine:
    """Mock of a vLLM actor, with the methods that `SamplesGenerator` calls.

    Responses go through Ray's object store.
    """

    def __init__(self, executor: AgentExecutorBase, llm_engine: Any = None) -> None:
        self.get_num_unfinished_requests = SimpleNamespace(remote=lambda: ray.put(0))
        self.generate_responses = SimpleNamespace(remote=self._generate)
        self._executor, self._llm_engine = executor, llm_engine

    def _generate(self, num_samples: int, **arguments: Any) -> Any:
        async def play() -> list[Any]:
            call = partial(self._executor.execute, llm_engine=self._llm_engine, **arguments)
            return [await call() for _ in range(num_samples)]

        return ray.put(asyncio.run(play()))


class _ScriptedEngine:
    """Mock of vLLM's engine that generates the script's answers, after some updates."""

    def __init__(self, gem_step: int, end_id: int) -> None:
        self.gem_step, self._end_id = gem_step, end_id

    async def generate(self, prompt_ids: Sequence[int], params: Any) -> Any:
        generation = answer(prompt_ids, params.max_tokens, self._end_id)
        pairs = zip(generation.ids, generation.logprobs or ())
        output = SimpleNamespace(
            token_ids=list(generation.ids),
            finish_reason=engine_reason(generation, params.max_tokens),
            logprobs=[{id: SimpleNamespace(logprob=logprob)} for id, logprob in pairs],
        )
        return SimpleNamespace(outputs=[output])


def _cut_state(episode: Episode) -> tuple[int, ...]:
    """Return a next prompt for a recorded episode that did not terminate."""
    ended = episode.failed or episode.terminated or not episode.turns
    return () if ended else (*sequences_or_padding(episode, END)[-1].ids, END)


class _Critic:
    """Mock of the critic's ranks that returns the golden value where each turn begins."""

    def __init__(self, episodes: Sequence[Episode], values: Sequence[Sequence[float]]) -> None:
        self._actor_handlers, self.duplicate_actors = [None], 1
        self._values: dict[tuple[int, ...], dict[int, float]] = {}
        """The values at some positions of each sequence, by its ids."""
        for episode, numbers in zip(episodes, values):
            for sequence in sequences_or_padding(episode, END):
                self._values.setdefault(sequence.ids[:1] * 2, {})  # padding
                positions = {turn: start - 1 for turn, start, _ in sequence.spans}
                self._values[sequence.ids] = {
                    positions[turn]: value
                    for turn, value in enumerate(numbers)
                    if turn in positions
                }
            if state := _cut_state(episode):
                row = (*state, state[-1])
                self._values[row] = {len(state) - 1: numbers[-1]}

    def async_run_method_batch(
        self, method_name: str, sequences: Any, action_mask: Any, attention_mask: Any
    ) -> list[Any]:
        return [ray.put([self._forward(ids, mask) for ids, mask in zip(sequences, attention_mask)])]

    def _forward(self, ids: Any, attention_mask: Any) -> Any:
        rows = torch.full((len(ids), ids.shape[1] - 1), 99.0)
        for row, tokens, length in zip(rows, ids.tolist(), attention_mask.sum(-1).tolist()):
            for position, value in self._values[tuple(tokens[:length])].items():
                row[position] = value
        return rows


class RankActor(BaseModelActor):
    """One rank: the model, and the experiences it received."""

    strategy: Any
    device: Any = "cpu"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.actor = self.load_actor()
        self.strategy = SimpleNamespace(
            is_rank_0=lambda: False, ring_attn_group=None, get_grad_norm=lambda actor: 0.0
        )
        self.items: list[Any] = []
        self.new_batch = True

    def load_actor(self) -> Any:
        """Return OpenRLHF's actor with the tiny model."""
        model, _ = load_tiny()
        actor = Actor(model)
        actor.packing_samples = False
        return actor

    def move(self, device: str, bfloat16: bool) -> None:
        """Move the model to a device, in the precision of OpenRLHF's `--ds.param_dtype`."""
        self.device = device
        self.actor.to(device, torch.bfloat16 if bfloat16 else torch.float32)

    def forward(
        self,
        sequences: Any,
        action_mask: Any,
        attention_mask: Any,
        mm_train_inputs_list: Any = None,
    ) -> Any:
        self.new_batch = True
        inputs = [tensor.to(self.device) for tensor in (sequences, action_mask, attention_mask)]
        return self.actor(*inputs).detach().cpu()

    def append(self, experience: Any) -> None:
        """Store an experience as the replay buffer does. A forward pass starts a new batch."""
        if self.new_batch:
            self.items, self.new_batch = [], False
        self.items += remove_padding_in_sequences(split_experience_batch(experience))

    def sequences(self) -> list[TrainedSequence]:
        """Return OpenRLHF's tensors without padding, as sequences."""
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
        """Return the gradient of one update by OpenRLHF's training step, in two micro-batches."""
        half = (len(self.items) + 1) // 2
        parts = (self.items[:half], self.items[half:])
        batches = [make_experience_batch(part).to_device(self.device) for part in parts]
        # without __init__, which needs a process group and a GPU
        trainer: Any = GemActorTrainer.__new__(GemActorTrainer)
        trainer.actor, trainer.aux_loss = self.actor, False
        trainer.ema_model = trainer.actor_optim = None
        trainer.actor_scheduler = SimpleNamespace(get_last_lr=lambda: [0.0])
        trainer.actor_loss_fn = PolicyLoss()
        trainer.args = SimpleNamespace(
            actor=SimpleNamespace(entropy_coef=None),
            algo=SimpleNamespace(kl=SimpleNamespace(use_loss=False)),
            train=SimpleNamespace(dynamic_batch_enable=False),
        )
        trainer.strategy = self.strategy
        # OpenRLHF multiplies the loss by the number of micro-batches, and DeepSpeed divides by it
        self.strategy.backward = lambda loss, actor, optimizer: (loss / len(batches)).backward()
        self.strategy.optimizer_step = lambda *args, **kwargs: None
        self.actor.zero_grad(set_to_none=True)
        micro_batches = iter_grad_accum_global_norm(
            batches, self.strategy, len(batches), lambda batch: batch.action_mask
        )
        for step, (batch, info) in enumerate(micro_batches):
            trainer.training_step(batch, 0.0, step, info)
        return {
            name: p.grad.cpu()
            for name, p in self.actor.model.named_parameters()
            if p.grad is not None
        }
