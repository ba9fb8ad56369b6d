"""Samples through OpenRLHF's samples generator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from worlds import ECHO, MOODY

from gem_core.errors import EnvError
from gem_openrlhf import GemConfig
from gem_openrlhf.samples import GemSamplesGenerator

Play = Callable[..., list[dict[str, Any]]]
FAILING = range(1, 33, 2)  # Moody fails if the seed is odd

pytestmark = pytest.mark.usefixtures("ray_here")


class Generator(GemSamplesGenerator):
    """Plays groups of two episodes without engines, and keeps their responses by seed."""

    def __init__(self, play: Play, config: GemConfig) -> None:
        self.args = SimpleNamespace(
            algo=SimpleNamespace(dynamic_filtering_range=(0, 1)),
            rollout=SimpleNamespace(batch_size=2, n_samples_per_prompt=2),
        )
        self.play, self.config = play, config
        self.groups: dict[int, list[dict[str, Any]]] = {}
        self.rows = (([], [f"seed {seed}"], [seed], [None]) for seed in config.train_seeds)

    def _dispatch_prompts_to_vllm(self, prompts: Any, labels: Any, **_: Any) -> Any:
        for seed in labels:
            self.groups[seed] = self.play(self.config, [seed], samples=2)
        return [ray.put(self.groups[seed]) for seed in labels]

    def play_all(self, filtering: bool) -> None:
        """Play all seeds, batch by batch."""
        exhausted = False
        while not exhausted:
            _, _, exhausted = self._generate_vllm(self.rows, 2, filtering, max_len=512)


@pytest.mark.setting("DAPO filter", "works")
def test_dynamic_filtering_keeps_groups_of_mixed_success(play: Play) -> None:
    """OpenRLHF drops a group whose mean score is 0 or 1, and plays the next prompt instead."""
    generator = Generator(play, GemConfig(ECHO, seeds=24, max_turn_tokens=6))
    samples, consumed, _ = generator._generate_vllm(generator.rows, 4, True, max_len=512)
    kept = Counter(label.episode.seed for sample in samples for label in sample.labels)
    mixed = {
        seed
        for seed, responses in generator.groups.items()
        if {response["label"].episode.success for response in responses} == {True, False}
    }
    assert set(kept) == mixed and set(kept.values()) == {2}
    assert len(mixed) == 4 < consumed == len(generator.groups)


class TestFailures:
    """Dynamic filtering drops failed episodes, so no update counts them."""

    @pytest.mark.setting("Failing runs", "works")
    def test_run_stops_after_three_batches_of_failed_episodes(self, play: Play) -> None:
        generator = Generator(play, GemConfig(MOODY, seeds=FAILING, max_turn_tokens=6))
        with pytest.raises(EnvError, match="every one of the last 12 episodes failed") as raised:
            generator.play_all(filtering=True)
        assert "in a bad mood" in str(raised.value) and "worlds.py" in str(raised.value)
        assert len(generator.groups) < 10 < len(FAILING), "the other seeds are not played"

    @pytest.mark.parametrize(("seeds", "filtering"), [(range(16), True), (FAILING, False)])
    def test_run_continues_if_episodes_finish_or_updates_count_them(
        self, play: Play, seeds: range, filtering: bool
    ) -> None:
        generator = Generator(play, GemConfig(MOODY, seeds=seeds, max_turn_tokens=6))
        generator.play_all(filtering)
        assert sorted(generator.groups) == list(seeds)

    def test_max_failed_updates_of_0_only_warns(
        self, play: Play, caplog: pytest.LogCaptureFixture
    ) -> None:
        config = GemConfig(MOODY, seeds=FAILING, max_turn_tokens=6, max_failed_updates=0)
        Generator(play, config).play_all(filtering=True)
        assert "made no update; the last 32 of them failed" in caplog.text
