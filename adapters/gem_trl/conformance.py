"""Conformance: runs the golden episodes through the real GRPOTrainer."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gem_conformance.golden import Case, failed_episode
from gem_conformance.harness import (
    Harness,
    TrainedSequence,
    run_rank,
    start_ranks_of_batches,
)
from gem_conformance.played import PlayedCase, answer

from gem_core.policies.tiny import load_tiny
from gem_core.types import Episode, Task
from gem_trl import ADAPTER
from gem_trl.config import GemConfig
from gem_trl.rollout import GemRollout
from gem_trl.trainer import GemGRPOTrainer, trainer_kwargs

__all__ = ["TRLHarness", "harness"]


class _Replay(GemRollout):
    """Rollout function that returns recorded episodes."""

    recorded: Sequence[Episode] = ()

    def episodes(self, tasks: Sequence[Task], trainer: Any, renderer: Any) -> list[Episode]:
        return list(self.recorded)


class TRLHarness(Harness):
    """Harness for TRL: one real trainer on the tiny model."""

    adapter = ADAPTER
    carries = frozenset({"logprobs", "total"})
    only_cpu = False

    def __init__(self, **grpo_config: Any) -> None:
        self.grpo_config = grpo_config
        self._trainer: Any = None

    def train(self, case: Case) -> list[TrainedSequence]:
        return self._sequences(*self._batch(case, case.episodes))

    def gradient(self, case: Case) -> Mapping[str, Any]:
        out, _ = self._batch(case, case.episodes)
        trainer = self._trainer
        trainer.model.train()
        trainer.model.zero_grad(set_to_none=True)
        trainer.current_gradient_accumulation_steps = 1
        with trainer.accelerator.autocast():
            loss = trainer._compute_loss(trainer.model, out)
        loss.backward()
        return {
            name: p.grad.detach().clone()
            for name, p in trainer.model.named_parameters()
            if p.grad is not None
        }

    def ranks(self, case: Case, parts: Sequence[Sequence[Episode]]) -> list[list[TrainedSequence]]:
        """Run two processes under gloo, each with its own trainer and its part of the batch."""
        return self.ranks_of_batches([(case, parts)])[0]

    def ranks_of_batches(
        self, batches: Sequence[tuple[Case, Sequence[Sequence[Episode]]]]
    ) -> list[list[list[TrainedSequence]]]:
        return start_ranks_of_batches("gem_trl.conformance", batches)

    def play(self, case: PlayedCase) -> list[Episode]:
        """Play with the rollout function; only TRL's method for one turn is replaced."""
        trainer, rollout = self._ready(), GemRollout(GemConfig(**case.config))

        def generate(prompts: Any, images: Any, fields: Any, num_generations: int) -> Any:
            cap = trainer.generation_config.max_new_tokens
            generations = [answer(prompt, cap) for prompt in prompts]
            return [list(g.ids) for g in generations], [list(g.logprobs or ()) for g in generations]

        prompts = [[{"role": "user", "content": "", "gem": {"seed": s}}] for s in case.seeds]
        trainer._generate_single_turn, trainer.state.global_step = generate, case.update
        trainer.model.train()
        try:
            return rollout.play(prompts, trainer)
        finally:
            del trainer._generate_single_turn
            trainer.state.global_step = 0
            rollout.close()

    def _batch(self, case: Case, episodes: Sequence[Episode]) -> tuple[dict[str, Any], int]:
        """Run TRL's own code on the episodes, up to the input of its loss."""
        trainer = self._ready()
        trainer.gem_config = replace(
            trainer.gem_config,
            advantage=case.estimator,
            gamma=case.gamma,
            estimator_kwargs=case.arguments,
        )
        # TRL takes whole groups only, here of two episodes
        played = [*episodes, failed_episode(99)] if len(episodes) % 2 else list(episodes)
        trainer.rollout_func.recorded = played
        inputs = [dict(trainer.train_dataset[i]) for i in range(len(played))]
        trainer.model.train()
        return trainer._generate_and_score_completions(inputs), len(episodes)

    def _sequences(self, out: Mapping[str, Any], count: int) -> list[TrainedSequence]:
        """Return TRL's tensors without padding, as sequences.

        TRL pads prompts on the left and completions on the right.
        """
        sequences = []
        logprobs = out.get("sampling_per_token_logps")
        rows, accelerator = self._trainer.gem_rollout.rows, self._trainer.accelerator
        size = sum(row.episode is not None for row in rows)  # first rows: the table has no others
        all_rewards = list(self._trainer._logs["rewards"]["episode_return"])  # of all ranks
        last_rewards = all_rewards[-size * accelerator.num_processes :]
        rewards = last_rewards[accelerator.process_index * size :][:size]
        # padding rows and the episode that fills a group are not part of the case
        played = [i for i, row in enumerate(rows) if 0 <= row.number < count]
        for i in sorted(played, key=lambda i: rows[i].number):
            prompt = out["prompt_ids"][i][out["prompt_mask"][i].bool()].tolist()
            tokens = out["completion_mask"][i].bool()
            zeros = [0.0] * len(prompt)
            sequences.append(
                TrainedSequence(
                    ids=prompt + out["completion_ids"][i][tokens].tolist(),
                    mask=[0] * len(prompt) + out["tool_mask"][i][tokens].tolist(),
                    advantages=zeros + out["advantages"][i][tokens].tolist(),
                    logprobs=None if logprobs is None else zeros + logprobs[i][tokens].tolist(),
                    total=rewards[rows[i].number],
                )
            )
        return sequences

    def _ready(self) -> Any:
        if self._trainer is None:
            from trl import GRPOConfig

            model, tokenizer = load_tiny()
            config = GemConfig("game:GuessTheNumber-v0-easy", seeds=64)
            args = GRPOConfig(
                output_dir=tempfile.mkdtemp(),
                use_cpu=self.device == "cpu",
                bf16=self.bfloat16,
                gradient_checkpointing=False,
                per_device_train_batch_size=8,
                num_generations=2,
                max_completion_length=256,
                report_to="none",
                disable_tqdm=True,
                **self.grpo_config,
            )
            kwargs = {**trainer_kwargs(config), "rollout_func": _Replay(config)}
            self._trainer = GemGRPOTrainer(
                model=model.float(), args=args, processing_class=tokenizer, **kwargs
            )
        return self._trainer


def harness() -> TRLHarness:
    """Return the harness that `gem-rl conformance trl` runs."""
    return TRLHarness()


def _rank(parts: list[tuple[Case, list[Episode]]]) -> list[list[TrainedSequence]]:
    harness = TRLHarness()
    return [harness._sequences(*harness._batch(*part)) for part in parts]


if __name__ == "__main__":
    run_rank(_rank)
