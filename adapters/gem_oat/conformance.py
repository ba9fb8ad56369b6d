"""Conformance: runs the golden episodes through oat's real learner."""

from __future__ import annotations

import os
import pickle
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import vllm
from deepspeed.accelerator import get_accelerator
from deepspeed.utils import safe_get_full_grad
from gem_conformance.golden import Case
from gem_conformance.harness import (
    Harness,
    TrainedSequence,
    run_rank,
    start_ranks_of_batches,
)
from gem_conformance.played import PlayedCase, answer, engine_reason
from oat.algorithms.ppo import PPOArgs
from oat.args import default_args_validation
from transformers import AutoTokenizer

from gem_core.adapter_kit.patching import patched
from gem_core.adapter_kit.ports import free_port
from gem_core.errors import ConfigError
from gem_core.policies.tiny import tiny_model_path
from gem_core.rollout.renderer import Renderer
from gem_core.types import Episode, Sampling
from gem_oat import ADAPTER
from gem_oat.config import GemConfig, check_settings, ppo_kwargs
from gem_oat.convert import actor_info, to_batch
from gem_oat.rollout import GemActor, play
from gem_oat.trainer import GemLearner, tokens_of

__all__ = ["OatHarness", "harness", "make_learner"]

_BATCH = 16
"""Transitions of a batch, padding included: room for the largest golden case."""
_TOKENS = 8
"""oat's `generate_max_length`: its loss divides the sum over the tokens of a turn by it."""


class OatHarness(Harness):
    """Harness for oat: one real learner on the tiny model, without actors.

    Cases with critic values use a second learner, which has a critic.
    """

    adapter = ADAPTER
    carries = frozenset({"logprobs", "total"})
    sequence_per_turn = True
    padding_has_logprobs = True
    only_cpu = False

    def __init__(self, **settings: Any) -> None:
        self.settings = settings
        self._learners: dict[bool, Any] = {}

    def train(self, case: Case) -> list[TrainedSequence]:
        return self._sequences(self._update(case, case.episodes))

    def gradient(self, case: Case) -> Mapping[str, Any]:
        gradient: dict[str, Any] = {}

        # oat calls it with the complete gradient, before the optimizer step
        def norm(model: Any, **kwargs: Any) -> Any:
            for name, parameter in model.model.module.named_parameters():
                gradient[name] = safe_get_full_grad(parameter).detach().clone()
            return original(model, **kwargs)

        with patched(self._learner(case).strategy, "get_gradient_norm", norm) as original:
            self._update(case, case.episodes)
        return gradient

    def gradient_factor(self, case: Case) -> float:
        """Return oat's scale: it divides by trained turns and a constant, not by trained tokens."""
        lengths = [
            len(turn.action_ids)
            for e in case.episodes
            for t, turn in enumerate(e.turns)
            if e.trained(t)
        ]
        return sum(lengths) / (max(len(lengths), 1) * _TOKENS)

    def ranks(self, case: Case, parts: Sequence[Sequence[Episode]]) -> list[list[TrainedSequence]]:
        """Run two processes under gloo or NCCL, each with its own learner and part of the batch."""
        return self.ranks_of_batches([(case, parts)])[0]

    def ranks_of_batches(
        self, batches: Sequence[tuple[Case, Sequence[Sequence[Episode]]]]
    ) -> list[list[list[TrainedSequence]]]:
        return start_ranks_of_batches("gem_oat.conformance", batches)

    def play(self, case: PlayedCase) -> list[Episode]:
        """Play with an actor; only its vLLM is replaced."""
        config = GemConfig(**case.config)
        args = _arguments(config, 1)
        args.gem = config
        actor = GemActor(None, {}, args)
        vllm.LLM, real = _ScriptedLLM, vllm.LLM
        try:
            actor.init(0, args.save_path)
        finally:
            vllm.LLM = real
        actor.updates = case.update
        tasks = [config.task(seed, index) for index, seed in enumerate(case.seeds)]
        episodes: list[Episode] = []
        sampling = Sampling(max_tokens=args.generate_max_length)
        with actor._rollout(sampling, actor._limits()) as rollout:
            play(rollout, tasks, actor.engine, config.batch_wait, episodes.append).wait()
        actor.finish()
        return sorted(episodes, key=lambda episode: episode.index)

    def _update(self, case: Case, episodes: Sequence[Episode]) -> dict[str, Any]:
        """Run oat's own code on the episodes, from its collector to its optimizer.

        Returns the input of its loss.
        """
        learner = self._learner(case)
        learner.args.gem = self._config(case)
        learner.args.gamma = case.gamma
        batch = to_batch(
            episodes, _BATCH, Renderer(learner.tokenizer), with_critic=learner.critic is not None
        )
        info = actor_info(episodes, batch)
        for transition in (t for transitions in batch for t in transitions):
            transition.info.update(info)  # as PPOMultiTurnActor.step does
        batch = pickle.loads(pickle.dumps(batch))  # as oat's plasma store does
        learner.actor_info = learner.collector.get_metrics(0.0, batch)
        learner.pi_buffer.clear()
        with _critic_values(learner, case, episodes, batch):
            learner.process_feedback_data(batch)
        dataset = learner.dataset_builder(learner.pi_buffer, learner.tokenizer, learner.strategy)
        data = self._loaded(dataset.collate_fn([dataset[i] for i in range(len(dataset))]))
        learner.model.train()
        learner.learning_step(data)
        return data

    def _loaded(self, data: dict[str, Any]) -> dict[str, Any]:
        """Return the input of the loss. Tests override it."""
        return data

    def _sequences(self, data: Mapping[str, Any]) -> list[TrainedSequence]:
        """Return oat's tensors without padding, as sequences."""
        sequences = []
        for i, prompt in enumerate(data["prompt_ids_lens"]):
            ids, mask = tokens_of(data, i)
            advantages = [0.0] * prompt + [float(data["advantages"][i])] * (len(ids) - prompt)
            logprobs = [0.0] * prompt + list(data["action_logprobs"][i])
            sequences.append(
                TrainedSequence(ids, mask, advantages, logprobs, total=float(data["rewards"][i]))
            )
        return sequences

    def _config(self, case: Case) -> GemConfig:
        return GemConfig(
            "game:GuessTheNumber-v0-easy",
            seeds=64,
            samples=2,
            advantage=case.estimator,
            gamma=case.gamma,
            estimator_kwargs={
                name: value for name, value in case.arguments.items() if name != "values"
            },
            max_turn_tokens=_TOKENS,
        )

    def _learner(self, case: Case) -> Any:
        config = self._config(case)
        if config.needs_values not in self._learners:
            if (name := get_accelerator().device_name()) != self.device:
                raise ConfigError(
                    f"DeepSpeed trains on {name!r}; set DS_ACCELERATOR={self.device} for the check"
                )
            self._learners[config.needs_values] = make_learner(
                config, bf16=self.bfloat16, **self.settings
            )
        return self._learners[config.needs_values]


class _ScriptedLLM:
    """The scripted engine of the kit, with the methods of vLLM that oat calls."""

    def __init__(self, **_: Any) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(str(tiny_model_path()))

    def get_tokenizer(self) -> Any:
        return self.tokenizer

    def generate(self, prompts: Any, sampling_params: Any, **_: Any) -> list[Any]:
        outputs = []
        for prompt in prompts:
            generation = answer(prompt["prompt_token_ids"], sampling_params.max_tokens)
            pairs = zip(generation.ids, generation.logprobs or ())
            completion = SimpleNamespace(
                token_ids=generation.ids,
                logprobs=[{id: SimpleNamespace(logprob=logprob)} for id, logprob in pairs],
                finish_reason=engine_reason(generation, sampling_params.max_tokens),
            )
            outputs.append(SimpleNamespace(outputs=[completion]))
        return outputs


@contextmanager
def _critic_values(
    learner: Any, case: Case, episodes: Sequence[Episode], batch: Sequence[Any]
) -> Iterator[None]:
    """Replace the critic's value of each state with that of the case; 0 for padding."""
    if learner.critic is None:
        yield
        return
    by_episode = dict(zip(map(id, case.episodes), case.arguments["values"]))
    values: dict[tuple[int, ...], float] = {}
    for episode, transitions in zip(episodes, batch):
        of_turns = by_episode[id(episode)]
        values |= {tuple(t.prompt_ids): of_turns[t.turn] for t in transitions if not t.padding}
        values[tuple(transitions[-1].cut_state)] = of_turns[-1]

    def replace_value(module: Any, args: Any, kwargs: Any, outputs: Any) -> Any:
        ids = kwargs["input_ids"] if "input_ids" in kwargs else args[0]
        # a critic in bfloat16 would round the value
        return outputs.float() * 0 + values.get(tuple(ids[0].tolist()), 0.0)

    hook = learner.critic.register_forward_hook(replace_value, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()


def make_learner(
    config: GemConfig, *, rank: int = 0, ranks: int = 1, port: int | None = None, **settings: Any
) -> GemLearner:
    """Return oat's learner for single updates, in this process and without actors."""
    args = _arguments(config, ranks, **settings)
    check_settings(args, config)
    args.gem = config
    args.learner_gpus_per_group = ranks
    args.local_rank = 0
    make: Any = GemLearner  # oat's annotations ask for an IPC server and a port as text
    learner: GemLearner = make(
        ranks,
        rank,
        0,
        "127.0.0.1",
        port or free_port(),
        False,
        default_args_validation(args),
        [],
        None,
    )
    learner._init(learner.args, [])
    learner.steps = 1
    return learner


def _arguments(config: GemConfig, ranks: int, **settings: Any) -> Any:
    """Return oat's arguments for the tiny model and batches of 16 transitions."""
    return PPOArgs(
        **{
            "pretrain": str(tiny_model_path()),
            "gpus": ranks,
            "collocate": True,
            "bf16": False,
            "flash_attn": False,
            "beta": 0.0,
            "tis_c": None,  # the reference has no importance correction
            "learning_rate": 0.0,  # all cases use the same weights
            "critic_learning_rate": 0.0,
            "lr_scheduler": "constant",
            "rollout_batch_size": _BATCH * ranks,
            "rollout_batch_size_per_device": _BATCH,
            "train_batch_size": _BATCH * ranks,
            "max_train": _BATCH * ranks,
            "save_path": tempfile.mkdtemp(),
            **ppo_kwargs(config),
            **settings,
        }
    )


def harness() -> OatHarness:
    """Return the harness that `gem-rl conformance oat` runs."""
    return OatHarness()


def _rank(parts: list[tuple[Case, list[Episode]]]) -> list[list[TrainedSequence]]:
    env = os.environ
    harness = OatHarness(
        rank=int(env["RANK"]), ranks=int(env["WORLD_SIZE"]), port=int(env["MASTER_PORT"])
    )
    return [harness._sequences(harness._update(*part)) for part in parts]


if __name__ == "__main__":
    run_rank(_rank)
