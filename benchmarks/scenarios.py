"""Scenarios: SFT on an expert's episodes, then RL, each measured by turns allowed and pass@k.

The experts are those of the environments. BabyAI has none, so `go_to` plays its levels in which the
mission is to go to an object of a single room.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from algorithms_plan import HELD_OUT, Run, Setting
from algorithms_training import Clock, Trainer, summary
from algorithms_warm_up import fit

from gem_core import Episode, Limits, Rollout, tasks_for, token_sequences
from gem_core.env.action_format import format_of
from gem_core.errors import ConfigError
from gem_core.policies.base import Player
from gem_core.policies.players import ExpertPlayer
from gem_core.policies.scripted import ScriptedPlayer
from gem_core.training.demonstrations import tokenised
from gem_eval.evaluation import pass_at_k

__all__ = ["expert_for", "expert_sequences", "go_to", "train_scenario", "within"]

STAGES = ("before", "sft", "rl")


def go_to(env: Any, observation: str) -> str:
    """Go to the object of a BabyAI mission, or look for it."""
    inner = env.unwrapped
    mission = re.fullmatch(r"go to (?:the|a) (?:(\w+) )?(\w+)", str(inner.world.mission))
    if mission is None:
        raise ConfigError(f"this player only goes to one object; the mission is {observation!r}")
    colour, kind = mission.groups()
    # look around first, then from another place
    forward = inner.turn % 4 == 3 and "move forward" in inner.possible
    action = "move forward" if forward else "turn right"
    for thing in inner.things:
        wanted = thing.type == kind and thing.name.startswith(colour or "")
        if wanted and f"go to {thing.name}" in inner.possible:
            action = f"go to {thing.name}"
            break
    form = format_of(env)
    return action if form is None else form.write(action)


def expert_for(env_id: str) -> Player:
    """Return the player whose episodes a scenario's SFT uses."""
    return ScriptedPlayer(go_to) if env_id.startswith("babyai:") else ExpertPlayer()


def expert_sequences(
    setting: Setting, renderer: Any, count: int, slots: int, context: int
) -> list[tuple[list[int], list[int]]]:
    """Return (ids, loss mask) of an expert's solved episodes that fit into the context."""
    tasks = tasks_for(setting.env, range(count), wrappers=setting.tools, env_kwargs=setting.kwargs)
    limits = Limits(max_turns=setting.turns)
    with Rollout(expert_for(setting.env), limits=limits, concurrency=slots) as engine:
        episodes = engine.run_batch(tasks)
    failed = next((e for e in episodes if e.failed), None)
    if failed is not None:
        raise ConfigError(f"an episode of the expert of {setting.env} failed: {failed.failure}")
    solved = [tokenised(e, renderer) for e in episodes if e.success]
    sequences = [(list(s.ids), list(s.mask)) for e in solved for s in token_sequences(e)]
    fitting = [item for item in sequences if len(item[0]) < context]
    if not fitting:
        raise ConfigError(f"no solved episode of {setting.env} fits into {context} tokens")
    return fitting


async def train_scenario(trainer: Trainer, run: Run) -> dict[str, Any]:
    """Train and measure one scenario; return the content of its result file."""
    trainer.restore(run.seed)
    clock, began = Clock(), time.time()
    stages = {"before": await measure(trainer, run)}
    setting = run.setting.in_folder(trainer.work)
    sequences = expert_sequences(
        setting, trainer.renderer, run.expert_episodes, trainer.concurrency, trainer.context
    )
    more: dict[str, Any] = {"rate": run.expert_rate, "size": run.expert_size, "seed": run.seed}
    loss = fit(trainer.model, sequences, run.expert_updates, room=trainer.room, **more)
    trainer.policy.refresh()
    stages["sft"] = await measure(trainer, run)
    curve = await trainer.updates(run, clock)
    if run.updates:
        stages["rl"] = await measure(trainer, run)
    result = await trainer.result(run, curve, clock, time.time() - began)
    expert = {"episodes": len(sequences), "loss": round(loss, 4)}
    return {**result, "stages": stages, "expert": expert}


async def measure(trainer: Trainer, run: Run) -> dict[str, Any]:
    """Play held-out seeds several times; return success by turns allowed, and pass@k."""
    seeds = range(HELD_OUT, HELD_OUT + run.evaluated // run.passes)
    episodes = await trainer.play(run.setting, seeds, run.passes, None, Clock())
    groups = [
        [bool(e.success) for e in episodes[i : i + run.passes] if not e.failed]
        for i in range(0, len(episodes), run.passes)
    ]
    sizes = [2**i for i in range(run.passes.bit_length()) if 2**i <= run.passes]
    values = summary(episodes)
    limit = run.setting.kwargs.get("max_turns") or run.setting.turns
    return {
        "success": values["success"],
        "return": values["return"],
        "turns": values["turns"],
        "failed": values["failed"],
        "tokens": values["tokens"],
        "within": within(episodes, limit or max(len(e.turns) for e in episodes)),
        "pass": {
            str(k): fmean(pass_at_k(len(g), sum(g), k) for g in groups if len(g) >= k)
            for k in sizes
        },
    }


def within(episodes: Sequence[Episode], turns: int) -> list[float]:
    """Return the share of episodes that were solved within 1, 2, ... turns."""
    known = [e for e in episodes if not e.failed]
    solved = [len(e.turns) for e in known if e.success]
    return [sum(n <= limit for n in solved) / len(known) for limit in range(1, turns + 1)]
