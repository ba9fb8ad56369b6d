"""SFT warm-up: the model imitates a player's actions, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
import torch

from gem_core import Env, Renderer, Sampling, register, run_batch, tasks_for
from gem_core.env.registry import environments
from gem_core.errors import ConfigError
from gem_core.policies.tiny import load_tiny
from gem_core.policies.transformers_policy import TransformersPolicy
from gem_core.training.warm_up import warm_up

GAME = "test:WarmUp-v0"


class Game(Env):
    """Three turns that accept any action; records its seeds."""

    execution = "inline"
    action_example = "\\boxed{1}"
    seeds: ClassVar[list[int]] = []

    def on_reset(self, options: Any) -> Any:
        Game.seeds.append(self.seed)
        return "Name a number.", {}

    def on_step(self, action: str) -> Any:
        return "And another.", 0.0, self.turn + 1 >= 3, False, {}

    def sample_action(self) -> str:
        return "\\boxed{3}"

    def expert(self) -> Iterator[str]:
        yield from ["\\boxed{7}"] * 3


class Seven:
    """Always answers 7."""

    def act(self, env: Env, observation: str) -> str:
        return "\\boxed{7}"


@pytest.fixture(autouse=True)
def game() -> Any:
    torch.set_num_threads(1)
    Game.seeds.clear()
    register(GAME, Game)
    yield
    environments.remove(GAME)


def test_the_model_learns_the_players_actions() -> None:
    model, tokenizer = load_tiny()
    before = warm_up(
        model, tokenizer, GAME, updates=1, player=Seven(), batch_size=4, learning_rate=0.0
    )
    after = warm_up(
        model, tokenizer, GAME, updates=25, player=Seven(), batch_size=4, learning_rate=3e-3
    )
    assert before > 0.5 and after < 0.1
    assert not model.training, "the mode is restored"
    policy = TransformersPolicy(model, tokenizer, seed=0)
    episodes = run_batch(
        tasks_for(GAME, range(4)), policy, Renderer(tokenizer), sampling=Sampling(max_tokens=12)
    )
    actions = [turn.action for episode in episodes for turn in episode.turns]
    assert actions.count("\\boxed{7}") >= 0.9 * len(actions)


def test_the_loss_is_the_mean_cross_entropy_of_the_action_tokens() -> None:
    """Computed by hand for one episode: action tokens and the token that ends each turn."""
    model, tokenizer = load_tiny()
    loss = warm_up(
        model, tokenizer, GAME, updates=1, player=Seven(), batch_size=1, learning_rate=0.0
    )
    messages, positions = [], []
    ids: list[int] = []
    for observation in ("Name a number.", "And another.", "And another."):
        messages.append({"role": "user", "content": observation})
        prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        ids = tokenizer.encode(prompt)
        action = [*tokenizer.encode("\\boxed{7}"), tokenizer.eos_token_id]
        positions += range(len(ids), len(ids) + len(action))
        ids = [*ids, *action]
        messages.append({"role": "assistant", "content": "\\boxed{7}"})
    with torch.no_grad():
        logprobs = model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
    expected = -sum(float(logprobs[i - 1, ids[i]]) for i in positions) / len(positions)
    assert loss == pytest.approx(expected, abs=1e-4)


def test_episodes_use_reserved_seeds_and_can_be_reused() -> None:
    model, tokenizer = load_tiny()
    warm_up(model, tokenizer, GAME, updates=3, batch_size=2)
    assert len(Game.seeds) == 6 and min(Game.seeds) >= 2**30
    Game.seeds.clear()
    warm_up(model, tokenizer, GAME, updates=5, batch_size=2, episodes=3)
    assert len(Game.seeds) == 3


def test_player_can_be_named() -> None:
    model, tokenizer = load_tiny()
    losses = [
        warm_up(model, tokenizer, GAME, updates=1, batch_size=2, learning_rate=0.0, player=player)
        for player in ("random", "expert")
    ]
    assert losses[0] != losses[1]  # the random player answers 3, the expert 7


def test_the_same_seed_gives_the_same_model() -> None:
    losses = []
    for _ in range(2):
        model, tokenizer = load_tiny()
        losses.append(
            warm_up(model, tokenizer, GAME, updates=3, batch_size=2, player=Seven(), seed=5)
        )
    assert losses[0] == losses[1]


def test_warm_up_rejects_a_failing_player_and_zero_updates() -> None:
    class Lost:
        def act(self, env: Env, observation: str) -> str:
            raise RuntimeError("no idea")

    model, tokenizer = load_tiny()
    with pytest.raises(ConfigError, match="a player that can play the environment; .*no idea"):
        warm_up(model, tokenizer, GAME, updates=1, player=Lost())
    with pytest.raises(ConfigError, match="updates of an SFT warm-up must be >= 1, got 0"):
        warm_up(model, tokenizer, GAME, updates=0)
    with pytest.raises(ConfigError, match="player must be one of random, expert, got 'me'"):
        warm_up(model, tokenizer, GAME, player="me")
