"""The SFT warm-up of `algorithms.py`, which makes the model that all runs start from."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any

from algorithms_model import ROOM, Optimizer, logprobs_of, micro_batches
from algorithms_plan import Setting
from algorithms_training import CONTEXT
from deterministic import deterministic
from packed import PackedTrunk

from gem_core import Episode, Limits, Renderer, Rollout, tasks_for, token_sequences
from gem_core.errors import ConfigError
from gem_core.policies.players import RandomPlayer
from gem_core.policies.scripted import ScriptedPlayer
from gem_core.training.demonstrations import tokenised


class Demonstrator:
    """Player that calls the tool in one of three problems, and otherwise gives a random answer."""

    def __init__(self, tool: str) -> None:
        self.tool = tool

    def act(self, env: Any, observation: str) -> str:
        rng = env.unwrapped.action_rng
        if "Give your answer as" in observation:
            question = observation.partition("\n")[0]
            if self.tool and rng.random() < 1 / 3:
                call = question
                if self.tool == "python":
                    call = f"print({' '.join(question.split()[2:])[:-1]})"
                return f"<{self.tool}>{call}</{self.tool}>"
            return f"\\boxed{{{rng.randrange(100, 10000)}}}"
        output = observation.partition("\nThat was the last")[0]
        pattern = r"\d+" if self.tool == "python" else r"[A-Z]\w+(?: [A-Z]\w+)?|\d{4}"
        words = re.findall(pattern, output)
        return f"\\boxed{{{rng.choice(words or ['0'])}}}"


def warm_up_sequences(
    settings: Sequence[Setting], tokenizer: Any, count: int
) -> list[tuple[list[int], list[int]]]:
    """Return (ids, loss mask) of episodes of random players.

    The mask covers the format of an answer to a question, but not its content, except for answers
    after a tool call.
    """
    renderer = Renderer(tokenizer)
    sequences = []
    for setting in settings:
        tool = setting.tools.partition("(")[0]
        has_dataset = "dataset" in setting.kwargs
        player = ScriptedPlayer(Demonstrator(tool).act) if has_dataset else RandomPlayer()
        tasks = tasks_for(
            setting.env, range(count), wrappers=setting.tools, env_kwargs=setting.kwargs
        )
        limits = Limits(max_turns=min(4, setting.turns or 4))
        with Rollout(player, limits=limits, concurrency=8) as engine:
            episodes = engine.run_batch(tasks)
        failed = next((e for e in episodes if e.failed), None)
        if failed is not None:
            raise ConfigError(
                f"an episode of {setting.env} with {setting.kwargs} failed: {failed.failure}"
            )
        is_question = setting.env.startswith(("rg:", "math:", "logic:", "qa:", "code:"))
        format_only = is_question and not setting.guesses
        sequences += [_warm_up_sequence(e, renderer, format_only) for e in episodes]
    return sequences


def _warm_up_sequence(
    episode: Episode, renderer: Renderer, format_only: bool
) -> tuple[list[int], list[int]]:
    (sequence,) = token_sequences(tokenised(episode, renderer))
    mask = list(sequence.mask)
    for turn, start, _ in sequence.spans[:1] if format_only else ():
        action = episode.turns[turn].action
        content = re.search(r"(?<=\\boxed\{).+(?=\})|(?<=print\().+(?=\))", action)
        if content and "<" not in action:
            encoded = renderer.tokenizer(
                action, add_special_tokens=False, return_offsets_mapping=True
            )
            for i, (begin, end) in enumerate(encoded["offset_mapping"]):
                mask[start + i] = int(not (content.start() < end and begin < content.end()))
    return list(sequence.ids[:CONTEXT]), mask[:CONTEXT]


def warm_up(
    model: Any, tokenizer: Any, settings: Sequence[Setting], updates: int, count: int, seed: int = 0
) -> float:
    """Train a model on random players by SFT, and return the loss of the last update.

    On machines with the same GPU and software, the weights are the same.
    """
    sequences = warm_up_sequences(settings, tokenizer, count)
    print(f"SFT warm-up: {updates} updates on {len(sequences)} episodes", flush=True)
    with deterministic():
        return fit(model, sequences, updates, seed=seed, compiled=False)


def fit(
    model: Any,
    sequences: Sequence[tuple[list[int], list[int]]],
    updates: int,
    *,
    rate: float = 1e-4,
    size: int = 48,
    seed: int = 0,
    room: int = ROOM,
    compiled: bool = True,
) -> float:
    """Train a model on batches of (ids, loss mask) by SFT, and return the loss of the last one.

    The rate falls to 0.
    """
    rng = random.Random(seed)
    optimizer, trunk = Optimizer(model, rate), PackedTrunk(model.model, compiled)
    for update in range(updates):
        batch = rng.sample(sequences, min(size, len(sequences)))
        tokens = sum(sum(mask) for _, mask in batch)
        loss = 0.0
        for part in micro_batches(batch, [len(ids) for ids, _ in batch], room):
            ids, masks = zip(*part)
            part_loss = -logprobs_of(model, trunk, ids, masks).sum() / tokens
            part_loss.backward()
            loss += part_loss.item()
        optimizer.step(1 - update / updates)
        if (update + 1) % 10 == 0:
            print(f"update {update + 1} of {updates}: loss {loss:.3f}", flush=True)
    return loss
