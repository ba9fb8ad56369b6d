"""Algorithms: REINFORCE, ReBN, GRPO, PPO and others on equal budgets, with one small model on one GPU.

    python benchmarks/algorithms.py list                       # the runs there are, and which are done
    python benchmarks/algorithms.py lesson --model smollm2     # the model all runs begin from, made once
    python benchmarks/algorithms.py run tuning/ --workers 9    # the learning rates, nine runs at a time on one GPU
    python benchmarks/algorithms.py run --workers 8            # all that are not done
    python benchmarks/algorithms.py run main/ --seconds 500    # only some; none is begun after 500 s
    python benchmarks/algorithms.py run speed/ --slots 256     # alone on the GPU: how fast it is
    python benchmarks/algorithms.py report                     # the tables and figures of docs/baselines.md

A finished run is one small JSON file under benchmarks/results/algorithms, and a run whose file is there is not run again: kill
the program when you like, go on later or on another machine. What differs between runs stands in `Run`; model, tokens a turn,
optimizer and loss are the same for all. One gradient step a batch, on policy:

    loss = -1/Z * sum over sampled tokens of A * log pi,    Z the sampled tokens of the batch

so that PPO's ratio is 1, and what is left of PPO is its critic: a second model with a value at the start of every turn, GAE over
turns, advantages whitened. No KL term, no entropy bonus, in any of them. Models compute in bfloat16, the optimizer in float32.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import json
import multiprocessing
import os
import queue
import random
import re
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import torch
from continuous import ContinuousPolicy
from torch.nn import functional

from gem_core import (
    Episode,
    GemError,
    HorizonSchedule,
    Limits,
    Renderer,
    Rollout,
    Sampling,
    advantages,
    tasks_for,
    token_sequences,
)
from gem_core.errors import ConfigError
from gem_core.policies import load_smollm2, load_tiny
from gem_core.policies.players import RandomPlayer
from gem_core.policies.scripted import ScriptedPlayer
from gem_core.policies.tiny import load_folder
from gem_core.training.demonstrations import tokenised

RESULTS = Path(__file__).parent / "results" / "algorithms"
DATA = Path(__file__).parents[1] / "plugins" / "gem_envs" / "data"
HELD_OUT = 2**30
"""Seeds below are trained on, seeds from here up are for evaluation."""
CONTEXT = 1024
LAMBDA, CRITIC_RATE = 0.95, 5e-5


# ---------------------------------------------------------------------------------------------------------------- the plan


@dataclass(frozen=True)
class Setting:
    """An environment as it is trained on here: small enough for 1,024 tokens a game."""

    env: str
    kwargs: dict[str, Any] = field(default_factory=dict)
    tokens: int = 16
    """That a turn may have."""
    turns: int | None = None
    """After which an episode is cut, where the environment itself has more."""
    tools: str = ""
    eval_kwargs: dict[str, Any] = field(default_factory=dict)
    """What differs for evaluation."""
    guesses: bool = False
    """Whether the lesson shows answers made at random, and not only their frame."""

    @property
    def name(self) -> str:
        return self.env.partition(":")[2] if self.env.startswith("game:") else self.env

    def placed(self, work: Path) -> Setting:
        """With the folder of the problems in the place of {work}."""
        return Setting(**json.loads(json.dumps(asdict(self)).replace("{work}", str(work))))


GUESS = Setting("game:GuessTheNumber-v0-easy")
SLACK = replace(GUESS, kwargs={"max_turns": 10})
"""Turns enough to find the number by counting: only a discount makes haste."""
HANGMAN = Setting("game:Hangman-v0-easy")
OTHERS = {"seed": 10_000}
"""Other tasks of a generator than training has: it makes task i of seed + i, and 500 of seed 42 are trained on. A small
generator asks some of its questions again."""
SUM = Setting(
    "rg:chain_sum",
    {"config": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}},
    eval_kwargs=OTHERS,
    guesses=True,
)
SETTINGS = [
    GUESS,
    HANGMAN,
    Setting("game:Mastermind-v0-easy", {"max_turns": 6}),
    Setting("game:Wordle-v0-easy", {"max_turns": 6}),
    Setting("game:TowerofHanoi-v0-easy"),
    Setting("game:Minesweeper-v0-easy", turns=6),
    Setting("game:Sokoban-v0-easy", {"num_boxes": 1, "max_turns": 8}),
    Setting("game:FifteenPuzzle-v0-easy", {"max_turns": 8}),
    Setting("game:Game2048-v0-easy", turns=8),
    Setting("game:Sudoku-v0-easy", turns=6),
    Setting("game:WordSearch-v0-easy", turns=2),
    Setting("game:Crosswords-v0-easy", turns=4),
    SUM,
    Setting("rg:letter_counting", eval_kwargs=OTHERS),
    Setting("rg:syllogism", eval_kwargs=OTHERS),
    Setting("rg:isomorphic_strings", eval_kwargs=OTHERS),
    Setting("rg:needle_haystack", eval_kwargs=OTHERS),
    Setting("math:Sample-v0"),
    Setting("logic:Sample-v0"),
    Setting("qa:Sample-v0"),
    Setting("code:Sample-v0", tokens=32),
    Setting("search:DeepSearch-v0", {"k": 1, "max_turns": 4}, tokens=24),
    Setting("textcraft:TextCraft-v0-depth1", {"max_turns": 6}, tokens=24),
    Setting("babyai:GoToLocalS8N7-v0", {"max_turns": 8}, tokens=24),
]
"""One of every kind of environment that needs nothing but Python: those with Java, a browser or bubblewrap are not here."""
MATHS = Setting(
    "math:Sample-v0",
    {"dataset": "{work}/products.jsonl"},
    24,
    eval_kwargs={"dataset": "{work}/products_eval.jsonl"},
)
SEARCH = Setting(
    "qa:Sample-v0",
    {"dataset": "{work}/facts.jsonl"},
    32,
    eval_kwargs={"dataset": "{work}/facts_eval.jsonl"},
)
TOOLS = {
    "maths": (MATHS, "python(max_uses=1)"),
    "search": (SEARCH, "search(index='{work}/index',k=1,max_uses=1)"),
}

RATES = (1e-5, 3e-5, 1e-4)
TRIALS = {GUESS.env: 128, HANGMAN.env: 64}
"""Every algorithm of the main table is tried with these rates on these environments, one seed each; the best is taken. By
environment, episodes an update: games of ten turns have fewer."""
TUNED_AS = {
    "reinforce": "reinforce",
    "rebn": "rebn",
    "grpo": "grpo",
    "ppo": "ppo",
    "rloo": "grpo",
    "reinforce++": "rebn",
}
"""By whose trial the rate is chosen: those with one seed only take that of their kin."""
MAIN = {**TRIALS, "game:TowerofHanoi-v0-easy": 64, "rg:chain_sum": 128}
SEEDS = 5
LONG = Setting("game:Hangman-v0", tokens=16)
SCHEDULES = {"fixed-6": "6", "fixed-20": "20", "scaling": "6,12,20@10"}
GROUPED = ("grpo", "rloo")


@dataclass(frozen=True)
class Run:
    """One training run, complete: whatever is not here is the same for all."""

    name: str
    setting: Setting
    algorithm: str
    seed: int = 0
    updates: int = 30
    episodes: int = 128
    rate: float | None = None
    """None: the best of the tuning runs."""
    gamma: float = 0.9
    horizon: str = ""
    evaluated: int = 256
    """Episodes on held-out starts, after the training."""

    @property
    def samples(self) -> int:
        """Episodes from one start: groups of eight for those who need groups."""
        return 8 if self.algorithm in GROUPED else 1

    @property
    def path(self) -> Path:
        return Path(f"{self.name}.json")


def plan() -> list[Run]:
    """All runs, in the order in which they are of use."""
    known = {s.env: s for s in SETTINGS}

    def trained(name: str, setting: Setting, algorithm: str, **more: Any) -> Run:
        gamma = 1.0 if algorithm in GROUPED else 0.9  # GRPO and RLOO compare whole episodes
        return Run(name, setting, algorithm, **{"gamma": gamma, **more})

    def untrained(name: str, setting: Setting) -> Run:
        return Run(name, setting, "none", updates=0)

    def compared(seed: int) -> list[Run]:
        found = []
        for env, episodes in MAIN.items():
            setting, title = known[env], f"main/{_slug(known[env])}"
            for algorithm in TUNED_AS:
                if seed == 0 or algorithm not in ("rloo", "reinforce++"):
                    found.append(
                        trained(
                            f"{title}-{algorithm}-{seed}",
                            setting,
                            algorithm,
                            seed=seed,
                            episodes=episodes,
                        )
                    )
            if env in TRIALS:  # whether it is the discount that GRPO lacks
                found.append(
                    trained(
                        f"{title}-rebn-undiscounted-{seed}",
                        setting,
                        "rebn",
                        seed=seed,
                        episodes=episodes,
                        gamma=1.0,
                    )
                )
        return found

    def discounts(seed: int) -> list[Run]:
        return [
            trained(
                f"gamma/{gamma:g}-{seed}",
                SLACK,
                "rebn",
                seed=seed,
                gamma=gamma,
                updates=45,
                evaluated=1024,
            )
            for gamma in (1.0, 0.95, 0.9, 0.8)
        ]

    def horizons(seed: int) -> list[Run]:
        return [
            trained(
                f"horizon/{schedule}-{seed}",
                LONG,
                "rebn",
                seed=seed,
                horizon=horizon,
                gamma=1.0,
                episodes=64,
            )
            for schedule, horizon in SCHEDULES.items()
        ]

    runs = [trained("speed/alone", GUESS, "rebn", episodes=256, updates=20, rate=RATES[1])]
    for env, episodes in TRIALS.items():
        for rate in RATES:
            for algorithm in dict.fromkeys(TUNED_AS.values()):
                name = f"tuning/{_slug(known[env])}-{algorithm}-{rate:g}"
                runs.append(
                    trained(name, known[env], algorithm, seed=100, rate=rate, episodes=episodes)
                )
    runs += [untrained(f"before/{_slug(s)}", s) for s in SETTINGS]
    for task, (setting, tools) in TOOLS.items():
        for used in ("", tools):
            what = f"{task}-{'tools' if used else 'none'}"
            with_tools = replace(setting, tools=used)
            runs.append(untrained(f"tools/{what}-before", with_tools))
            runs.append(trained(f"tools/{what}-after", with_tools, "rebn", gamma=1.0))
    for seed in range(3):
        runs += compared(seed)
    for seed in range(3):
        runs += discounts(seed)
    runs.append(untrained("horizon/before", LONG))
    for seed in range(3):
        runs += horizons(seed)
    for s in SETTINGS:
        for algorithm in ("rebn", "reinforce"):
            runs.append(
                trained(
                    f"breadth/{_slug(s)}-{algorithm}",
                    s,
                    algorithm,
                    updates=20,
                    episodes=64,
                    evaluated=128,
                )
            )
    for seed in range(3, SEEDS):
        runs += compared(seed)
    return runs


def tuned(out: Path) -> dict[str, float]:
    """The rate of each algorithm with which its mean return over the last ten updates was highest, averaged over the trials."""
    scores: dict[tuple[str, float], list[float]] = {}
    for run in plan():
        if run.name.startswith("tuning/") and (out / run.path).is_file():
            curve = json.loads((out / run.path).read_text(encoding="utf-8"))["curve"]["return"]
            scores.setdefault((run.algorithm, run.rate or 0.0), []).append(fmean(curve[-10:]))
    best = {}
    for algorithm, like in TUNED_AS.items():
        tried = [scores.get((like, rate), []) for rate in RATES]
        if any(len(found) < len(TRIALS) for found in tried):
            raise ConfigError(
                f"the tuning of {like} is not done; do it first: algorithms.py run tuning/"
            )
        best[algorithm] = max(RATES, key=lambda rate: fmean(scores[like, rate]))
    return best


def _slug(setting: Setting) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", setting.name)


# ------------------------------------------------------------------------------------------------------------- the lesson


class Student:
    """Shows how a tool is called, in one of three problems, and what an answer looks like; it knows no answers itself."""

    def __init__(self, tool: str) -> None:
        self.tool = tool

    def act(self, env: Any, observation: str) -> str:
        rng = env.unwrapped.action_rng
        if "Give your answer as" in observation:
            question = observation.partition("\n")[0]
            if self.tool and rng.random() < 1 / 3:
                wanted = (
                    f"print({' '.join(question.split()[2:])[:-1]})"
                    if self.tool == "python"
                    else question
                )
                return f"<{self.tool}>{wanted}</{self.tool}>"
            return f"\\boxed{{{rng.randrange(100, 10000)}}}"
        found = observation.partition("\nThat was the last")[0]
        words = (
            re.findall(r"\d+", found)
            if self.tool == "python"
            else re.findall(r"[A-Z]\w+(?: [A-Z]\w+)?|\d{4}", found)
        )
        return f"\\boxed{{{rng.choice(words or ['0'])}}}"


def lesson_rows(
    settings: Sequence[Setting], tokenizer: Any, count: int
) -> list[tuple[list[int], list[int]]]:
    """(ids, mask) of games played at random. Of an answer to a question only the frame is imitated, not the content, unless a
    tool has just said it."""
    renderer = Renderer(tokenizer)
    found = []
    for setting in settings:
        tool = setting.tools.partition("(")[0]
        player = (
            ScriptedPlayer(Student(tool).act) if "dataset" in setting.kwargs else RandomPlayer()
        )
        tasks = tasks_for(
            setting.env, range(count), wrappers=setting.tools, env_kwargs=setting.kwargs
        )
        with Rollout(
            player, limits=Limits(max_turns=min(4, setting.turns or 4)), concurrency=8
        ) as engine:
            episodes = engine.run_batch(tasks)
        broken = next((e for e in episodes if e.failed), None)
        if broken is not None:
            raise ConfigError(
                f"{setting.env} with {setting.kwargs} cannot be played: {broken.failure}"
            )
        framed = (
            setting.env.startswith(("rg:", "math:", "logic:", "qa:", "code:"))
            and not setting.guesses
        )
        found += [_row(e, renderer, framed) for e in episodes]
    return found


def _row(episode: Episode, renderer: Renderer, framed: bool) -> tuple[list[int], list[int]]:
    (view,) = token_sequences(tokenised(episode, renderer))
    mask = list(view.mask)
    for turn, start, _ in view.spans[:1] if framed else ():
        said = episode.turns[turn].action
        content = re.search(r"(?<=\\boxed\{).+(?=\})|(?<=print\().+(?=\))", said)
        if content and "<" not in said:
            places = renderer.tokenizer(
                said, add_special_tokens=False, return_offsets_mapping=True
            )["offset_mapping"]
            for i, (begin, end) in enumerate(places):
                mask[start + i] = int(not (content.start() < end and begin < content.end()))
    return list(view.ids[:CONTEXT]), mask[:CONTEXT]


def lesson(
    model: Any, tokenizer: Any, settings: Sequence[Setting], updates: int, count: int, seed: int = 0
) -> float:
    """Imitation of random players; returns the loss of the last update."""
    rows = lesson_rows(settings, tokenizer, count)
    rng = random.Random(seed)
    optimizer = Optimizer(model, 1e-4)
    for update in range(updates):
        chosen = rng.sample(rows, min(48, len(rows)))
        loss = 0.0
        for part in _parts(chosen, [len(ids) for ids, _ in chosen]):
            ids_B_T, mask_B_T = (_padded([row[i] for row in part], model.device) for i in (0, 1))
            share = -_logprobs(model, ids_B_T, mask_B_T.bool()).sum() / sum(
                sum(mask) for _, mask in chosen
            )
            share.backward()
            loss += share.item()
        optimizer.step(1 - update / updates)
    return loss


# ----------------------------------------------------------------------------------------------------------- one training


class Optimizer:
    """Adam on float32 copies of a model's parameters: steps as small as ours would be rounded away in bfloat16."""

    def __init__(self, model: torch.nn.Module, rate: float) -> None:
        model.zero_grad()  # what a run that failed may have left
        self.parameters = list(model.parameters())
        self.copies = [p.detach().float().clone() for p in self.parameters]
        self.rate = rate
        self.adam = torch.optim.Adam(self.copies, lr=rate, fused=self.copies[0].is_cuda)

    def step(self, share: float = 1.0) -> float:
        """One step, of this share of the rate, along the gradients, which are cut to a norm of 1; returns the norm before."""
        for copied, p in zip(self.copies, self.parameters):
            copied.grad = None if p.grad is None else p.grad.float()
            p.grad = None
        norm = torch.nn.utils.clip_grad_norm_(self.copies, 1.0)
        for group in self.adam.param_groups:
            group["lr"] = self.rate * share
        self.adam.step()
        with torch.no_grad():
            torch._foreach_copy_(self.parameters, self.copies)
        return float(norm)


class Critic(torch.nn.Module):
    """A copy of the model with a number instead of words: the value of what stands before a turn's first token."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.trunk = copy.deepcopy(model.model)
        self.head = torch.nn.Linear(model.config.hidden_size, 1, device=model.device)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)

    def forward(self, ids_B_T: torch.Tensor, chosen_B_T: torch.Tensor) -> torch.Tensor:
        hidden_B_T_D = self.trunk(input_ids=ids_B_T, use_cache=False).last_hidden_state
        return self.head(hidden_B_T_D[chosen_B_T].float())[:, 0]


@dataclass
class Clock:
    """Where the time went: sampling, everything else of playing, updates."""

    generation: float = 0.0
    environment: float = 0.0
    update: float = 0.0
    tokens: int = 0


class Trainer:
    """A model, the engine that plays it, and the weights every run begins from."""

    def __init__(self, model: Any, tokenizer: Any, work: Path, slots: int = 128) -> None:
        self.model, self.tokenizer, self.work, self.slots = model, tokenizer, work, slots
        self.base = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
        self.policy = ContinuousPolicy(model, tokenizer, slots=slots, context=CONTEXT)
        self.renderer = Renderer(tokenizer)
        self.engine = Rollout(self.policy, self.renderer, concurrency=slots)

    def train(self, run: Run) -> dict[str, Any]:
        """Everything of one run; what it returns is what is kept."""
        try:
            return self._train(run)
        finally:
            self.engine.close()  # the environments: the next run has others

    def _train(self, run: Run) -> dict[str, Any]:
        self.model.load_state_dict(self.base)
        self.policy.seed(run.seed)
        self.policy.refresh()
        optimizer = Optimizer(self.model, run.rate or 0.0)
        critic = Critic(self.model) if run.algorithm == "ppo" else None
        critic_optimizer = Optimizer(critic, CRITIC_RATE) if critic is not None else None
        starts = random.Random(run.seed)
        horizon = HorizonSchedule.parse(run.horizon or None)
        clock, curve, began = Clock(), [], time.time()
        for step in range(run.updates):
            seeds = [starts.randrange(HELD_OUT) for _ in range(run.episodes // run.samples)]
            turns = horizon(step) if horizon else None
            batch = self.play(run.setting, seeds, run.samples, turns, clock)
            since = time.time()
            more = {}
            if critic is not None and critic_optimizer is not None:
                credit, more["value_loss"] = self.criticise(
                    batch, critic, critic_optimizer, run.gamma
                )
            else:
                credit = advantages(batch, run.algorithm, gamma=run.gamma)
            more["grad_norm"], more["apart"] = self.update(batch, credit, optimizer)
            self.policy.refresh()
            clock.update += time.time() - since
            curve.append({**summary(batch), **more})
        seconds = time.time() - began
        held_out = range(HELD_OUT, HELD_OUT + run.evaluated)
        shown = replace(run.setting, kwargs={**run.setting.kwargs, **run.setting.eval_kwargs})
        after = self.play(
            shown, held_out, 1, None, Clock()
        )  # with the turns the game has, whatever it was trained with
        return {
            "run": asdict(run),
            "evaluation": {name: _short(value) for name, value in summary(after).items()},
            "curve": {
                name: [_short(line[name]) for line in curve] for name in (curve[0] if curve else {})
            },
            "seconds": round(seconds, 2),
            "clock": {name: round(value, 2) for name, value in asdict(clock).items()},
        }

    def play(
        self, setting: Setting, seeds: Iterable[int], samples: int, turns: int | None, clock: Clock
    ) -> list[Episode]:
        """A batch of episodes, and the time it took."""
        began, busy, tokens = time.time(), self.policy.seconds, self.policy.tokens
        limits = Limits(
            max_turns=turns or setting.turns, max_context=CONTEXT - 2, step_deadline=60.0
        )
        sampling = Sampling(temperature=1.0, max_tokens=setting.tokens)
        setting = setting.placed(self.work)
        tasks = tasks_for(
            setting.env, seeds, samples=samples, wrappers=setting.tools, env_kwargs=setting.kwargs
        )
        self.engine.configure(
            self.policy, self.renderer, sampling=sampling, limits=limits, concurrency=self.slots
        )
        episodes = self.engine.run_batch(tasks)
        if all(e.failed for e in episodes):
            raise ConfigError(
                f"every episode of {setting.env} failed, the first with: {episodes[0].failure}"
            )
        generation = self.policy.seconds - busy
        clock.generation += generation
        clock.environment += max(0.0, time.time() - began - generation)
        clock.tokens += self.policy.tokens - tokens
        return episodes

    def update(
        self, episodes: Sequence[Episode], credit: Sequence[Sequence[float]], optimizer: Optimizer
    ) -> tuple[float, float]:
        """One step along the gradient of the loss above; returns the gradient's norm before it was cut, and how far apart the
        logprobs of sampler and trainer are on average: by so much PPO's ratio is not 1."""
        rows = [
            (view, view.broadcast(turns))
            for e, turns in zip(episodes, credit)
            for view in token_sequences(e)
        ]
        count = max(sum(sum(view.mask) for view, _ in rows), 1)
        apart = 0.0
        for part in _parts(rows, [len(view.ids) for view, _ in rows]):
            ids_B_T = _padded([view.ids for view, _ in part], self.model.device)
            mask_B_T = _padded([view.mask for view, _ in part], self.model.device).bool()
            advantage_B_T = _padded([spread for _, spread in part], self.model.device)
            sampled_B_T = _padded([view.logprobs or () for view, _ in part], self.model.device)
            logp = _logprobs(self.model, ids_B_T, mask_B_T)
            (-(logp * advantage_B_T[mask_B_T]).sum() / count).backward()
            apart += (logp.detach() - sampled_B_T[mask_B_T]).abs().sum().item()
        return optimizer.step(), apart / count

    def criticise(
        self, episodes: Sequence[Episode], critic: Critic, optimizer: Optimizer, gamma: float
    ) -> tuple[list[list[float]], float]:
        """GAE of every turn by the critic's values, whitened; and the critic's own step towards the returns they imply.

        A turn limit is part of the rules here: nothing comes after it, as nothing does after an end.
        """
        values: dict[int, list[float]] = {}
        rows = [(view, e) for e in episodes for view in token_sequences(e)]
        count = sum(len(view.spans) for view, _ in rows)
        total = 0.0
        for part in _parts(rows, [len(view.ids) for view, _ in rows]):
            firsts = [[begin - 1 for _, begin, _ in view.spans] for view, _ in part]
            ids_B_T = _padded([view.ids for view, _ in part], self.model.device)
            chosen_B_T = torch.zeros_like(ids_B_T, dtype=torch.bool)
            for row, places in enumerate(firsts):
                chosen_B_T[row, places] = True
            found = critic(ids_B_T, chosen_B_T)
            numbers = iter(found.tolist())
            part_values = [[next(numbers) for _ in places] for places in firsts]
            part_episodes = [e for _, e in part]
            raw = advantages(
                part_episodes, "gae", values=_closed(part_values), gamma=gamma, lam=LAMBDA
            )
            targets = [a + v for row, known in zip(raw, part_values) for a, v in zip(row, known)]
            loss = (found - torch.tensor(targets, device=found.device)).square().sum() / count
            loss.backward()
            total += loss.item()
            values.update({id(e): row for e, row in zip(part_episodes, part_values)})
        optimizer.step()
        known = _closed([values.get(id(e), [0.0] * len(e.turns)) for e in episodes])
        return advantages(
            episodes, "gae", values=known, gamma=gamma, lam=LAMBDA, whiten=True
        ), total


def _parts(rows: Sequence[Any], lengths: Sequence[int]) -> Iterator[list[Any]]:
    """Rows of like length together, as many as fit into memory at once."""
    room = 16384
    ordered = sorted(range(len(rows)), key=lambda i: lengths[i], reverse=True)
    while ordered:
        fit = max(1, room // lengths[ordered[0]])
        yield [rows[i] for i in ordered[:fit]]
        del ordered[:fit]


def _closed(values: Sequence[Sequence[float]]) -> list[list[float]]:
    """Values with the one behind the last turn, 0."""
    return [[*row, 0.0] for row in values]


def _padded(rows: Sequence[Sequence[float]], device: Any) -> torch.Tensor:
    width = max(map(len, rows))
    return torch.tensor([[*row, *[0] * (width - len(row))] for row in rows], device=device)


def _logprobs(model: Any, ids_B_T: torch.Tensor, mask_B_T: torch.Tensor) -> torch.Tensor:
    """log pi of the chosen tokens, in a row. Padding stands behind, where causal attention does not see it."""
    hidden_B_T_D = model.model(input_ids=ids_B_T, use_cache=False).last_hidden_state
    logits_N_V = model.lm_head(hidden_B_T_D[:, :-1][mask_B_T[:, 1:]])
    return -functional.cross_entropy(
        logits_N_V.float(), ids_B_T[:, 1:][mask_B_T[:, 1:]], reduction="none"
    )


def summary(episodes: Sequence[Episode]) -> dict[str, float | None]:
    """What a batch came to, over the episodes that were played to an end."""
    known = [e for e in episodes if not e.failed]
    solved = [len(e.turns) for e in known if e.success]
    returns = [sum(e.rewards) for e in known]
    return {
        "success": fmean(bool(e.success) for e in known),
        "return": fmean(returns),
        "return_std": pstdev(returns),
        "turns": fmean(len(e.turns) for e in known),
        "turns_to_solve": fmean(solved) if solved else None,
        "tool_uses": fmean(e.final_info.get("tool_uses", 0) for e in known),
        "tokens": sum(len(t.action_ids) for e in known for t in e.turns),
        "commonest": max(Counter(e.turns[0].action for e in known if e.turns).values(), default=0)
        / len(known),
        "failed": len(episodes) - len(known),
    }


def _short(number: float | None) -> float | None:
    return None if number is None else float(f"{number:.4g}")


# ---------------------------------------------------------------------------------------------- many runs on one machine


def prepare(work: Path) -> None:
    """The problems of the runs with tools: products of two numbers, and facts about an invented country with its corpus."""
    from gem_tools.search import Index

    work.mkdir(parents=True, exist_ok=True)
    pairs = [(a, b) for a in range(11, 100) for b in range(11, a + 1)]
    random.Random(0).shuffle(pairs)
    problems = [{"problem": f"What is {a} * {b}?", "answer": str(a * b)} for a, b in pairs]
    facts = [
        json.loads(line)
        for line in (DATA / "sample_search.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    single = [fact for fact in facts if fact["hops"] == 1]
    for name, rows in (
        ("products", problems[512:]),
        ("products_eval", problems[:512]),
        ("facts", single[:36]),
        ("facts_eval", single[36:]),
    ):
        (work / f"{name}.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8"
        )
    if not (work / "index" / "index.json").is_file():
        Index.build(DATA / "sample_search_corpus.jsonl", work / "index")


def load(model: str) -> tuple[Any, Any]:
    """(model, tokenizer) by name or folder; on a GPU, if there is one, in the form that trains fastest there."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if model == "tiny":
        loaded, tokenizer = load_tiny(device)
    elif model == "smollm2":
        loaded, tokenizer = load_smollm2(device=device)
    elif (Path(model) / "config.json").is_file():
        loaded, tokenizer = load_folder(model, "--model", device)
    else:
        raise ConfigError(
            f"--model must be 'tiny', 'smollm2' or a model folder with a config.json; given: {model!r}"
        )
    hasten(loaded, torch.bfloat16 if device == "cuda" else torch.float32)
    return loaded, tokenizer


def hasten(model: Any, dtype: torch.dtype) -> None:
    """Fewer and larger kernels: parameters of the given type, norms in one piece, and layers computed again on the way back, so
    that a whole batch fits into memory at once."""
    for p in model.parameters():  # and not the buffers: what turns queries and keys stays exact
        p.data = p.data.to(dtype)
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if type(child).__name__ == "LlamaRMSNorm":
                norm = torch.nn.RMSNorm(child.weight.shape, child.variance_epsilon)
                norm.weight = child.weight
                setattr(parent, name, norm)
    model.gradient_checkpointing_enable({"use_reentrant": False, "preserve_rng_state": False})
    model.train()


def fingerprint(model: Any) -> str:
    """Tells weights apart: runs of one table should have begun from the same."""
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.float().sum(dtype=torch.float64).cpu().numpy().tobytes())
    return digest.hexdigest()[:12]


def work_off(
    model: str, work: str, out: str, runs: Any, workers: int, slots: int, deadline: float
) -> None:
    """A worker: takes one run after the other from a queue."""
    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = True
    loaded, tokenizer = load(model)
    trainer = Trainer(loaded, tokenizer, Path(work), slots)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    begun_from = {
        "model": fingerprint(loaded),
        "device": device,
        "torch": torch.__version__,
        "workers": workers,
    }
    while time.time() < deadline:
        try:
            run = runs.get(timeout=0.2)
        except queue.Empty:
            return
        try:
            result = trainer.train(run)
        except KeyboardInterrupt:  # which a terminal sends to workers as well
            return
        except Exception:  # noqa: BLE001 - the other runs go on; this one has no file and can be run again
            print(f"{run.name} failed:\n{traceback.format_exc()}", file=sys.stderr, flush=True)
            continue
        path = Path(out) / run.path
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_suffix(f".{os.getpid()}")
        scratch.write_text(
            json.dumps({**result, **begun_from}, indent=None) + "\n", encoding="utf-8"
        )
        scratch.rename(path)
        e, c = result["evaluation"], result["clock"]
        total = max(sum(c[k] for k in ("generation", "environment", "update")), 1e-9)
        print(
            f"{run.name}: success {e['success']:.1%}, return {e['return']:.3f}, {e['turns']:.1f} turns; "
            f"{result['seconds']:.0f} s, {60 * run.updates / max(result['seconds'], 1e-9):.0f} updates/min, "
            f"{c['tokens'] / max(c['generation'], 1e-9):.0f} tokens/s, time: generation {c['generation'] / total:.0%}, "
            f"environment {c['environment'] / total:.0%}, update {c['update'] / total:.0%}",
            flush=True,
        )


def left(patterns: Sequence[str], out: Path) -> list[Run]:
    """The runs that are wanted and not done."""
    wanted = [
        run for run in plan() if not patterns or any(run.name.startswith(p) for p in patterns)
    ]
    if not wanted:
        raise ConfigError(f"no run's name begins with any of {list(patterns)}; `list` shows them")
    return [run for run in wanted if not (out / run.path).is_file()]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, about in (
        ("list", "the runs, and which are done"),
        ("lesson", "make the model all runs begin from"),
        ("run", "run what is not done"),
        ("report", "write the tables and figures"),
    ):
        command = commands.add_parser(name, help=about)
        command.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
        if name in ("list", "run"):
            command.add_argument(
                "only", nargs="*", help="beginnings of names, as in main/ or breadth/"
            )
        if name in ("lesson", "run"):
            command.add_argument(
                "--work",
                type=Path,
                default=Path("runs/algorithms"),
                help="folder for the model and problems",
            )
        if name == "lesson":
            command.add_argument(
                "--model", default="smollm2", help="'tiny', 'smollm2' or a model folder"
            )
            command.add_argument("--updates", type=int, default=120)
            command.add_argument("--count", type=int, default=48, help="games of each environment")
        if name == "run":
            command.add_argument(
                "--workers", type=int, default=1, help="processes that share the GPU"
            )
            command.add_argument(
                "--slots", type=int, default=128, help="episodes that each of them plays at a time"
            )
            command.add_argument(
                "--seconds", type=float, default=float("inf"), help="begin no run after so long"
            )
    args = parser.parse_args(argv)
    if args.command == "report":
        from algorithms_report import report

        report(args.out)
        return 0
    if args.command == "list":
        missing = {run.name for run in left(args.only, args.out)}
        for run in plan():
            if not args.only or any(run.name.startswith(p) for p in args.only):
                print(f"{'-' if run.name in missing else 'done':5}{run.name}")
        return 0
    for name in ("updates", "count", "workers", "slots"):
        if getattr(args, name, 1) < 1:
            raise ConfigError(f"--{name} must be 1 or more; given: {getattr(args, name)}")
    if args.command == "lesson":
        prepare(args.work)
        model, tokenizer = load(args.model)
        taught = [*SETTINGS, LONG] + [
            replace(s, tools=tools) for s, used in TOOLS.values() for tools in ("", used)
        ]
        placed = [setting.placed(args.work) for setting in taught]
        began = time.time()
        loss = lesson(model, tokenizer, placed, args.updates, args.count)
        model.save_pretrained(args.work / "model")
        tokenizer.save_pretrained(args.work / "model")
        print(
            f"loss {loss:.3f}, {time.time() - began:.0f} s; the model ({fingerprint(model)}) is in {args.work / 'model'}"
        )
        return 0
    todo = left(args.only, args.out)
    if not (args.work / "model" / "config.json").is_file():
        raise ConfigError(
            f"there is no model in {args.work / 'model'}; make it first: algorithms.py lesson --work {args.work}"
        )
    if any(run.updates and run.rate is None for run in todo):
        rates = tuned(args.out)
        todo = [
            replace(run, rate=rates[run.algorithm]) if run.updates and run.rate is None else run
            for run in todo
        ]
    prepare(args.work)
    context = multiprocessing.get_context("spawn")
    runs = context.Queue()
    for run in todo:
        runs.put(run)
    deadline = time.time() + args.seconds
    given = (
        str(args.work / "model"),
        str(args.work),
        str(args.out),
        runs,
        args.workers,
        args.slots,
        deadline,
    )
    workers = [
        context.Process(target=work_off, args=given) for _ in range(min(args.workers, len(todo)))
    ]
    began = time.time()
    for worker in workers:
        worker.start()
    try:
        for worker in workers:
            worker.join()
    except KeyboardInterrupt:
        for worker in workers:
            worker.terminate()
        print("interrupted; finished runs are kept", file=sys.stderr)
        return 130
    undone = len(left(args.only, args.out))
    print(f"{len(todo) - undone} runs in {time.time() - began:.0f} s, {undone} left")
    return 0 if not undone or time.time() > deadline else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (GemError, OSError) as error:
        sys.exit(f"error: {error}")
