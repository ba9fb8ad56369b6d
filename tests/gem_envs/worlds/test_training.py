"""Each family of worlds trains two updates with the tiny model."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch

import gem_core as gem
from gem_core.adapter_kit.settings import model_context
from gem_core.policies.models import load_model
from gem_core.policies.transformers_policy import TransformersPolicy

CASES = (
    ("maze:Random-v0-easy", ""),
    ("maze:Random-v0-easy", "plan"),
    ("maze:Random-v0-easy", "memory(every=1)"),
    ("household:PickAndPlace-v0", ""),
    ("sql:Query-v0-simple", ""),
    ("tool:Academia-v0", ""),
    ("webshop:WebShop-v0", ""),
    ("wiki:WikiGame-v0-easy", ""),
    ("search:MultiHop-v0-hops2", ""),
    pytest.param("web:Shop-v0", "", marks=pytest.mark.slow),
    pytest.param("miniwob:click-button", "", marks=pytest.mark.slow),
)


@pytest.fixture(scope="module")
def tiny() -> tuple[Any, Any]:
    """Load the tiny model and its tokenizer once."""
    return load_model("tiny")


@pytest.mark.parametrize(("id", "wrappers"), CASES)
def test_family_trains_two_updates(id: str, wrappers: str, tiny: tuple[Any, Any]) -> None:
    torch.set_num_threads(1)
    model, tokenizer = copy.deepcopy(tiny[0]), tiny[1]
    policy = TransformersPolicy(model, tokenizer, seed=0, max_batch=None)
    limits = gem.Limits(max_turns=3, max_context=model_context(model.config))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    with gem.Rollout(
        policy, gem.Renderer(tokenizer), sampling=gem.Sampling(max_tokens=8), limits=limits
    ) as rollout:
        for update in range(2):
            tasks = gem.tasks_for(id, range(4 * update, 4 * update + 4), wrappers=wrappers)
            episodes = rollout.run_batch(tasks)
            assert not any(episode.failed for episode in episodes)
            # Random completions earn no reward, so the number of the episode is the advantage.
            batch = [
                (sequence, sequence.broadcast([number - 1.5] * len(episode.turns)))
                for number, episode in enumerate(episodes)
                for sequence in gem.token_sequences(episode)
            ]
            loss = torch.zeros(())
            for sequence, advantages in batch:
                ids = torch.tensor([sequence.ids])
                logp = model(input_ids=ids).logits[0, :-1].float().log_softmax(-1)
                chosen = logp.gather(-1, ids[0, 1:, None])[:, 0]
                loss = loss - (chosen * torch.tensor(advantages[1:])).sum()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            assert math.isfinite(loss.item()) and loss.item() != 0.0
    assert any(
        not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True)
    )
