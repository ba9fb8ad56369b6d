"""Samples through OpenRLHF's samples generator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from worlds import ECHO

from gem_openrlhf import GemConfig
from gem_openrlhf.samples import GemSamplesGenerator

Play = Callable[..., list[dict[str, Any]]]


@pytest.mark.setting("DAPO filter", "works")
@pytest.mark.usefixtures("ray_here")
def test_dynamic_filtering_keeps_groups_of_mixed_success(play: Play) -> None:
    """OpenRLHF drops a group whose mean score is 0 or 1, and plays the next prompt instead."""
    config, groups = GemConfig(ECHO, seeds=24, max_turn_tokens=6), {}

    class Generator(GemSamplesGenerator):
        def __init__(self) -> None:  # OpenRLHF's own needs engines
            self.args = SimpleNamespace(algo=SimpleNamespace(dynamic_filtering_range=(0, 1)))
            self.received = []

        def _dispatch_prompts_to_vllm(self, prompts: Any, labels: Any, **_: Any) -> Any:
            for seed in labels:
                groups[seed] = play(config, [seed], samples=2)
            return [ray.put(groups[seed]) for seed in labels]

    rows = (([], [f"seed {seed}"], [seed], [None]) for seed in config.train_seeds)
    samples, consumed, _ = Generator()._generate_vllm(rows, 4, True, max_len=512)
    kept = Counter(label.episode.seed for sample in samples for label in sample.labels)
    mixed = {
        seed
        for seed, responses in groups.items()
        if {response["label"].episode.success for response in responses} == {True, False}
    }
    assert set(kept) == mixed and set(kept.values()) == {2}
    assert len(mixed) == 4 < consumed == len(groups)
