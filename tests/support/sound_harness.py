"""Sound harness: a correct harness without a framework, for tests of the conformance kit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from byte_tokenizer import ByteTokenizer
from gem_conformance import Case, TrainedSequence
from gem_conformance.golden import END
from gem_conformance.harness import Harness
from gem_conformance.played import PlayedCase, answer

from gem_core.adapter_kit.declaration import Adapter, Capabilities
from gem_core.policies.batching import BatchPolicy
from gem_core.rollout.engine import Rollout
from gem_core.rollout.renderer import Renderer
from gem_core.training.advantage import advantages
from gem_core.training.config import TrainingConfig
from gem_core.training.sequences import channel_rewards, padding_sequence, token_sequences
from gem_core.types import Episode, Generation, Sampling

ADAPTER = Adapter(
    name="sound",
    package="gem_sound",
    distribution="sound",
    import_name="sound",
    extra="sound",
    versions=">=1",
    python=">=3.10",
    platforms=("*",),
    install=(),
    capabilities=Capabilities(
        several_sequences=True,
        masked_turns=True,
        failed_episodes=True,
        groups=True,
        critic_values=True,
    ),
    status="ready",
    summary="a trainer for tests",
)


@dataclass
class Config(TrainingConfig):
    adapter = ADAPTER


class Sound(Harness):
    """A correct harness without a framework, which carries every field."""

    adapter = ADAPTER
    version = "1"
    carries = frozenset({"logprobs", "rewards", "total"})
    sequence_per_turn = False
    padding_has_logprobs = False
    end_id = ByteTokenizer.eos_token_id

    def train(self, case: Case) -> list[TrainedSequence]:
        return self._sequences(case, case.episodes)

    def ranks(self, case: Case, parts: Sequence[Sequence[Episode]]) -> list[list[TrainedSequence]]:
        return [self._sequences(case, part) for part in parts]

    def gradient(self, case: Case) -> dict[str, Any]:
        return {}

    def play(self, case: PlayedCase) -> list[Episode]:
        config = Config(**case.config)
        with Rollout(
            BatchPolicy(self.generate), Renderer(ByteTokenizer()), concurrency=len(case.seeds)
        ) as rollout:
            rollout.configure(
                sampling=Sampling(max_tokens=config.max_turn_tokens or 16),
                limits=config.limits(case.update, max_context=self.max_context),
            )
            return rollout.run_batch([config.task(seed) for seed in case.seeds])

    def generate(self, prompts: list[list[int]], sampling: Sampling) -> list[Generation]:
        return [answer(prompt, sampling.max_tokens, self.end_id) for prompt in prompts]

    def gradient_factor(self, case: Case) -> float:
        return 1.0

    def numbers(self, case: Case, episodes: Sequence[Episode]) -> list[list[float]]:
        return advantages(episodes, case.estimator, gamma=case.gamma, **case.arguments)

    def _sequences(self, case: Case, part: Sequence[Episode]) -> list[TrainedSequence]:
        numbers = self.numbers(case, case.episodes)
        per_episode = {id(episode): per_turn for episode, per_turn in zip(case.episodes, numbers)}
        trained = []
        for episode in part:
            sequences = token_sequences(episode) or [
                padding_sequence(episode.prompt_ids(0) if episode.turns else (END,), END)
            ]
            total = math.nan if episode.failed else episode.total_reward
            trained += [
                TrainedSequence(
                    s.ids,
                    s.mask,
                    s.broadcast(per_episode[id(episode)]),
                    s.logprobs,
                    channel_rewards(episode, s, case.gamma),
                    total,
                )
                for s in sequences
            ]
        return trained
