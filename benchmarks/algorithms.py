"""Compare REINFORCE, ReBN, GRPO, PPO and others on equal budgets, with one small model on one GPU.

    python benchmarks/algorithms.py list                     # all runs, and which are done
    python benchmarks/algorithms.py lesson --model smollm2   # SFT warm-up: the model of all runs
    python benchmarks/algorithms.py run tuning/ --workers 9  # learning rates, nine runs at a time
    python benchmarks/algorithms.py run --workers 8          # all runs that are not done
    python benchmarks/algorithms.py run main/ --seconds 500  # some runs; start none after 500 s
    python benchmarks/algorithms.py run speed/ --slots 256   # one run alone on the GPU
    python benchmarks/algorithms.py report                   # tables, figures of docs/baselines.md
    python benchmarks/algorithms.py reproduce main/GuessTheNumber-v0-easy-rebn    # one cell again

A finished run is one small JSON file in benchmarks/results/algorithms. Runs with a file are
skipped, so the program can be killed and resumed at any time, also on another machine. `Run` has
all settings that differ between runs; model, tokens per turn, optimizer and loss are the same.
Each batch gets one on-policy gradient step:

    loss = -1/Z * sum over sampled tokens of A * log pi,    Z = number of sampled tokens

So PPO's ratio is 1, and PPO differs by its critic: a second model with a value at the start of
every turn, GAE over turns, and whitened advantages. No algorithm has a KL term or an entropy bonus.
Models compute in bfloat16, the optimizer in float32.
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
"""The first evaluation seed; training uses the seeds below."""
CONTEXT = 1024
LAMBDA, CRITIC_RATE = 0.95, 5e-5


# ------------------------------------------------------------------------------------------- plan


@dataclass(frozen=True)
class Setting:
    """An environment and its settings, small enough for 1,024 tokens per episode."""

    env: str
    kwargs: dict[str, Any] = field(default_factory=dict)
    tokens: int = 16
    """Maximum tokens per turn."""
    turns: int | None = None
    """Turn limit, if it is lower than that of the environment."""
    tools: str = ""
    eval_kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments that replace those of `kwargs` in the evaluation."""
    guesses: bool = False
    """Whether the SFT warm-up trains on the content of random answers, not only on their format."""

    @property
    def name(self) -> str:
        return self.env.partition(":")[2] if self.env.startswith("game:") else self.env

    def in_folder(self, work: Path) -> Setting:
        """Return the setting with {work} replaced by the folder of the problems."""
        return Setting(**json.loads(json.dumps(asdict(self)).replace("{work}", str(work))))


GUESS = Setting("game:GuessTheNumber-v0-easy")
SLACK = replace(GUESS, kwargs={"max_turns": 10})
"""Enough turns to find the number by counting, so only a discount favours short episodes."""
HANGMAN = Setting("game:Hangman-v0-easy")
OTHERS = {"seed": 10_000}
"""Seed of evaluation tasks: a generator makes task i from seed + i, and training uses 500 tasks
from seed 42. A small generator may repeat some of its questions."""
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
"""One environment of every kind that only needs Python (no Java, browser or bubblewrap)."""
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
"""Episodes per update of the environments for tuning; games with ten turns have fewer.

Each algorithm of the main table runs with all RATES and one seed on them, and uses the best."""
TUNED_AS = {
    "reinforce": "reinforce",
    "rebn": "rebn",
    "grpo": "grpo",
    "ppo": "ppo",
    "rloo": "grpo",
    "reinforce++": "rebn",
}
"""The algorithm whose tuned rate each algorithm uses; those with a single seed are not tuned."""
MAIN = {**TRIALS, "game:TowerofHanoi-v0-easy": 64, "rg:chain_sum": 128}
SEEDS = 5
LONG = Setting("game:Hangman-v0", tokens=16)
SCHEDULES = {"fixed-6": "6", "fixed-20": "20", "scaling": "6,12,20@10"}
GROUPED = ("grpo", "rloo")


@dataclass(frozen=True)
class Run:
    """All settings of a training run that differ between runs."""

    name: str
    setting: Setting
    algorithm: str
    seed: int = 0
    updates: int = 30
    episodes: int = 128
    rate: float | None = None
    """None: the best rate of the tuning runs."""
    gamma: float = 0.9
    horizon: str = ""
    evaluated: int = 256
    """Episodes on held-out seeds, after the training."""

    @property
    def samples(self) -> int:
        """Episodes per seed: eight for algorithms that compare groups."""
        return 8 if self.algorithm in GROUPED else 1

    @property
    def cell(self) -> str:
        """The name without the seed: a cell of the report's tables."""
        return self.name.removesuffix(f"-{self.seed}")

    @property
    def path(self) -> Path:
        return Path(f"{self.name}.json")


def plan() -> list[Run]:
    """Return all runs, the most important ones first."""
    settings = {s.env: s for s in SETTINGS}

    def trained(name: str, setting: Setting, algorithm: str, **more: Any) -> Run:
        gamma = 1.0 if algorithm in GROUPED else 0.9  # GRPO and RLOO compare whole episodes
        return Run(name, setting, algorithm, **{"gamma": gamma, **more})

    def untrained(name: str, setting: Setting) -> Run:
        return Run(name, setting, "none", updates=0)

    def compared(seed: int) -> list[Run]:
        runs = []
        for env, episodes in MAIN.items():
            setting, title = settings[env], f"main/{_slug(settings[env])}"
            size = {"seed": seed, "episodes": episodes}
            for algorithm in TUNED_AS:
                if seed == 0 or algorithm not in ("rloo", "reinforce++"):
                    runs.append(trained(f"{title}-{algorithm}-{seed}", setting, algorithm, **size))
            if env in TRIALS:  # tests whether GRPO only lacks the discount
                name = f"{title}-rebn-undiscounted-{seed}"
                runs.append(trained(name, setting, "rebn", gamma=1.0, **size))
        return runs

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
                name = f"tuning/{_slug(settings[env])}-{algorithm}-{rate:g}"
                runs.append(
                    trained(name, settings[env], algorithm, seed=100, rate=rate, episodes=episodes)
                )
    runs += [untrained(f"before/{_slug(s)}", s) for s in SETTINGS]
    for task, (setting, tools) in TOOLS.items():
        for used in ("", tools):
            name = f"tools/{task}-{'tools' if used else 'none'}"
            with_tools = replace(setting, tools=used)
            runs.append(untrained(f"{name}-before", with_tools))
            runs.append(trained(f"{name}-after", with_tools, "rebn", gamma=1.0))
    for seed in range(3):
        runs += compared(seed)
    for seed in range(3):
        runs += discounts(seed)
    runs.append(untrained("horizon/before", LONG))
    for seed in range(3):
        runs += horizons(seed)
    short = {"updates": 20, "episodes": 64, "evaluated": 128}
    for s in SETTINGS:
        for algorithm in ("rebn", "reinforce"):
            runs.append(trained(f"breadth/{_slug(s)}-{algorithm}", s, algorithm, **short))
    for seed in range(3, SEEDS):
        runs += compared(seed)
    return runs


def tuned(out: Path) -> dict[str, float]:
    """Return the best rate of each algorithm by the mean return of the last ten updates."""
    scores: dict[tuple[str, float], list[float]] = {}
    for run in plan():
        if run.name.startswith("tuning/") and (out / run.path).is_file():
            curve = json.loads((out / run.path).read_text(encoding="utf-8"))["curve"]["return"]
            scores.setdefault((run.algorithm, run.rate or 0.0), []).append(fmean(curve[-10:]))
    best = {}
    for algorithm, like in TUNED_AS.items():
        tried = [scores.get((like, rate), []) for rate in RATES]
        if any(len(returns) < len(TRIALS) for returns in tried):
            raise ConfigError(
                f"the tuning runs of {like} are missing; run them first: algorithms.py run tuning/"
            )
        best[algorithm] = max(RATES, key=lambda rate: fmean(scores[like, rate]))
    return best


def _slug(setting: Setting) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", setting.name)


# ------------------------------------------------------------------------------------ SFT warm-up


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
    """Train a model on random players by SFT, and return the loss of the last update."""
    sequences = warm_up_sequences(settings, tokenizer, count)
    print(f"SFT warm-up: {updates} updates on {len(sequences)} episodes", flush=True)
    rng = random.Random(seed)
    optimizer = Optimizer(model, 1e-4)
    for update in range(updates):
        batch = rng.sample(sequences, min(48, len(sequences)))
        tokens = sum(sum(mask) for _, mask in batch)
        loss = 0.0
        for part in _micro_batches(batch, [len(ids) for ids, _ in batch]):
            ids_B_T = _padded([ids for ids, _ in part], model.device)
            mask_B_T = _padded([mask for _, mask in part], model.device)
            part_loss = -_logprobs(model, ids_B_T, mask_B_T.bool()).sum() / tokens
            part_loss.backward()
            loss += part_loss.item()
        optimizer.step(1 - update / updates)
        if (update + 1) % 10 == 0:
            print(f"update {update + 1} of {updates}: loss {loss:.3f}", flush=True)
    return loss


# --------------------------------------------------------------------------------------- training


class Optimizer:
    """Adam on float32 copies of a model's parameters: bfloat16 would round the small steps to 0."""

    def __init__(self, model: torch.nn.Module, rate: float) -> None:
        model.zero_grad()  # a failed run may have left gradients
        self.parameters = list(model.parameters())
        self.copies = [p.detach().float().clone() for p in self.parameters]
        self.rate = rate
        self.adam = torch.optim.Adam(self.copies, lr=rate, fused=self.copies[0].is_cuda)

    def step(self, share: float = 1.0) -> float:
        """Clip the gradients to norm 1, step with `share` of the rate, return the norm before."""
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
    """A copy of the model with a value head, which is read before the first token of a turn."""

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
    """Seconds of sampling, of the rest of the rollout, and of updates."""

    generation: float = 0.0
    environment: float = 0.0
    update: float = 0.0
    tokens: int = 0


class Trainer:
    """A model, its rollout engine, and the initial weights of every run."""

    def __init__(self, model: Any, tokenizer: Any, work: Path, slots: int = 128) -> None:
        self.model, self.tokenizer, self.work, self.slots = model, tokenizer, work, slots
        self.base = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
        self.policy = ContinuousPolicy(model, tokenizer, slots=slots, context=CONTEXT)
        self.renderer = Renderer(tokenizer)
        self.engine = Rollout(self.policy, self.renderer, concurrency=slots)

    def train(self, run: Run) -> dict[str, Any]:
        """Train and evaluate one run; return the content of its result file."""
        try:
            return self._train(run)
        finally:
            self.engine.close()  # closes the environments; the next run has others

    def _train(self, run: Run) -> dict[str, Any]:
        self.model.load_state_dict(self.base)
        self.policy.seed(run.seed)
        self.policy.refresh()
        optimizer = Optimizer(self.model, run.rate or 0.0)
        critic = Critic(self.model) if run.algorithm == "ppo" else None
        critic_optimizer = Optimizer(critic, CRITIC_RATE) if critic is not None else None
        rng = random.Random(run.seed)
        horizon = HorizonSchedule.parse(run.horizon or None)
        clock, curve, began = Clock(), [], time.time()
        for step in range(run.updates):
            seeds = [rng.randrange(HELD_OUT) for _ in range(run.episodes // run.samples)]
            turns = horizon(step) if horizon else None
            batch = self.play(run.setting, seeds, run.samples, turns, clock)
            update_began = time.time()
            metrics = {}
            if critic is not None and critic_optimizer is not None:
                per_turn, metrics["value_loss"] = self.critic_advantages(
                    batch, critic, critic_optimizer, run.gamma
                )
            else:
                per_turn = advantages(batch, run.algorithm, gamma=run.gamma)
            metrics["grad_norm"], metrics["apart"] = self.update(batch, per_turn, optimizer)
            self.policy.refresh()
            clock.update += time.time() - update_began
            curve.append({**summary(batch), **metrics})
        seconds = time.time() - began
        held_out = range(HELD_OUT, HELD_OUT + run.evaluated)
        setting = replace(run.setting, kwargs={**run.setting.kwargs, **run.setting.eval_kwargs})
        # evaluate with the environment's turn limit, not with the training horizon
        after = self.play(setting, held_out, 1, None, Clock())
        names = curve[0] if curve else {}
        return {
            "run": asdict(run),
            "evaluation": {name: _rounded(value) for name, value in summary(after).items()},
            "curve": {name: [_rounded(line[name]) for line in curve] for name in names},
            "seconds": round(seconds, 2),
            "clock": {name: round(value, 2) for name, value in asdict(clock).items()},
        }

    def play(
        self, setting: Setting, seeds: Iterable[int], samples: int, turns: int | None, clock: Clock
    ) -> list[Episode]:
        """Play a batch of episodes, and add its time to the clock."""
        began, busy, tokens = time.time(), self.policy.seconds, self.policy.tokens
        limits = Limits(
            max_turns=turns or setting.turns, max_context=CONTEXT - 2, step_deadline=60.0
        )
        sampling = Sampling(temperature=1.0, max_tokens=setting.tokens)
        setting = setting.in_folder(self.work)
        tasks = tasks_for(
            setting.env, seeds, samples=samples, wrappers=setting.tools, env_kwargs=setting.kwargs
        )
        self.engine.configure(
            self.policy, self.renderer, sampling=sampling, limits=limits, concurrency=self.slots
        )
        episodes = self.engine.run_batch(tasks)
        if all(e.failed for e in episodes):
            raise ConfigError(
                f"all episodes of {setting.env} failed, the first with: {episodes[0].failure}"
            )
        generation = self.policy.seconds - busy
        clock.generation += generation
        clock.environment += max(0.0, time.time() - began - generation)
        clock.tokens += self.policy.tokens - tokens
        return episodes

    def update(
        self, episodes: Sequence[Episode], per_turn: Sequence[Sequence[float]], optimizer: Optimizer
    ) -> tuple[float, float]:
        """Take one step on the loss above.

        Returns the gradient norm before clipping, and the mean difference between the logprobs of
        sampler and trainer, by which PPO's ratio differs from 1.
        """
        pairs = [
            (sequence, sequence.broadcast(turns))
            for e, turns in zip(episodes, per_turn)
            for sequence in token_sequences(e)
        ]
        device = self.model.device
        tokens = max(sum(sum(sequence.mask) for sequence, _ in pairs), 1)
        difference = 0.0
        for part in _micro_batches(pairs, [len(sequence.ids) for sequence, _ in pairs]):
            ids_B_T = _padded([sequence.ids for sequence, _ in part], device)
            mask_B_T = _padded([sequence.mask for sequence, _ in part], device).bool()
            advantage_B_T = _padded([per_token for _, per_token in part], device)
            sampled_B_T = _padded([sequence.logprobs or () for sequence, _ in part], device)
            logp = _logprobs(self.model, ids_B_T, mask_B_T)
            (-(logp * advantage_B_T[mask_B_T]).sum() / tokens).backward()
            difference += (logp.detach() - sampled_B_T[mask_B_T]).abs().sum().item()
        return optimizer.step(), difference / tokens

    def critic_advantages(
        self, episodes: Sequence[Episode], critic: Critic, optimizer: Optimizer, gamma: float
    ) -> tuple[list[list[float]], float]:
        """Return whitened GAE advantages per turn, and train the critic on the returns.

        A turn limit is part of the rules here, so the value after it is 0, as after the end.
        """
        values: dict[int, list[float]] = {}
        pairs = [(sequence, e) for e in episodes for sequence in token_sequences(e)]
        turns = sum(len(sequence.spans) for sequence, _ in pairs)
        total = 0.0
        for part in _micro_batches(pairs, [len(sequence.ids) for sequence, _ in pairs]):
            positions = [[begin - 1 for _, begin, _ in sequence.spans] for sequence, _ in part]
            ids_B_T = _padded([sequence.ids for sequence, _ in part], self.model.device)
            chosen_B_T = torch.zeros_like(ids_B_T, dtype=torch.bool)
            for i, before_turns in enumerate(positions):
                chosen_B_T[i, before_turns] = True
            predicted = critic(ids_B_T, chosen_B_T)
            numbers = iter(predicted.tolist())
            part_values = [[next(numbers) for _ in before_turns] for before_turns in positions]
            part_episodes = [e for _, e in part]
            raw = advantages(
                part_episodes, "gae", values=_with_final(part_values), gamma=gamma, lam=LAMBDA
            )
            targets = [a + v for gae, known in zip(raw, part_values) for a, v in zip(gae, known)]
            targets_N = torch.tensor(targets, device=predicted.device)
            loss = (predicted - targets_N).square().sum() / turns
            loss.backward()
            total += loss.item()
            values.update({id(e): known for e, known in zip(part_episodes, part_values)})
        optimizer.step()
        known = _with_final([values.get(id(e), [0.0] * len(e.turns)) for e in episodes])
        whitened = advantages(episodes, "gae", values=known, gamma=gamma, lam=LAMBDA, whiten=True)
        return whitened, total


def _micro_batches(items: Sequence[Any], lengths: Sequence[int]) -> Iterator[list[Any]]:
    """Group items of similar length, as many as fit into memory."""
    room = 16384
    ordered = sorted(range(len(items)), key=lambda i: lengths[i], reverse=True)
    while ordered:
        fit = max(1, room // lengths[ordered[0]])
        yield [items[i] for i in ordered[:fit]]
        del ordered[:fit]


def _with_final(values: Sequence[Sequence[float]]) -> list[list[float]]:
    """Append the value after the last turn, 0."""
    return [[*per_turn, 0.0] for per_turn in values]


def _padded(sequences: Sequence[Sequence[float]], device: Any) -> torch.Tensor:
    width = max(map(len, sequences))
    return torch.tensor([[*s, *[0] * (width - len(s))] for s in sequences], device=device)


def _logprobs(model: Any, ids_B_T: torch.Tensor, mask_B_T: torch.Tensor) -> torch.Tensor:
    """Return log pi of the tokens in the mask, flat.

    Padding is on the right, so causal attention never sees it.
    """
    hidden_B_T_D = model.model(input_ids=ids_B_T, use_cache=False).last_hidden_state
    logits_N_V = model.lm_head(hidden_B_T_D[:, :-1][mask_B_T[:, 1:]])
    return -functional.cross_entropy(
        logits_N_V.float(), ids_B_T[:, 1:][mask_B_T[:, 1:]], reduction="none"
    )


def summary(episodes: Sequence[Episode]) -> dict[str, float | None]:
    """Return the metrics of a batch, over the episodes that did not fail."""
    known = [e for e in episodes if not e.failed]
    solved = [len(e.turns) for e in known if e.success]
    returns = [sum(e.rewards) for e in known]
    first_actions = Counter(e.turns[0].action for e in known if e.turns)
    return {
        "success": fmean(bool(e.success) for e in known),
        "return": fmean(returns),
        "return_std": pstdev(returns),
        "turns": fmean(len(e.turns) for e in known),
        "turns_to_solve": fmean(solved) if solved else None,
        "tool_uses": fmean(e.final_info.get("tool_uses", 0) for e in known),
        "tokens": sum(len(t.action_ids) for e in known for t in e.turns),
        "commonest": max(first_actions.values(), default=0) / len(known),
        "failed": len(episodes) - len(known),
    }


def _rounded(number: float | None) -> float | None:
    return None if number is None else float(f"{number:.4g}")


# ---------------------------------------------------------------------------------------- workers


def prepare(work: Path) -> None:
    """Write the problems of the runs with tools.

    They are products of two numbers, and facts about an invented country with their corpus.
    """
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
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (work / f"{name}.jsonl").write_text(text, encoding="utf-8")
    if not (work / "index" / "index.json").is_file():
        Index.build(DATA / "sample_search_corpus.jsonl", work / "index")


def load(model: str) -> tuple[Any, Any]:
    """Load (model, tokenizer) by name or folder, sped up for training, on a GPU if there is one."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if model == "tiny":
        loaded, tokenizer = load_tiny(device)
    elif model == "smollm2":
        loaded, tokenizer = load_smollm2(device=device)
    elif (Path(model) / "config.json").is_file():
        loaded, tokenizer = load_folder(model, "--model", device)
    else:
        raise ConfigError(
            f"--model must be 'tiny', 'smollm2' or a model folder with a config.json; got {model!r}"
        )
    speed_up(loaded, torch.bfloat16 if device == "cuda" else torch.float32)
    return loaded, tokenizer


def speed_up(model: Any, dtype: torch.dtype) -> None:
    """Make training faster with a smaller type, fused norms and gradient checkpointing.

    Checkpointing lets a whole batch fit into memory.
    """
    for p in model.parameters():  # not the buffers: the rotary embedding stays in float32
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
    """Hash the weights, to check that all runs of a table start from the same model."""
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.float().sum(dtype=torch.float64).cpu().numpy().tobytes())
    return digest.hexdigest()[:12]


def run_worker(
    model: str, work: str, out: str, runs: Any, workers: int, slots: int, deadline: float
) -> None:
    """Take runs from a queue and train them, until the deadline."""
    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = True
    loaded, tokenizer = load(model)
    trainer = Trainer(loaded, tokenizer, Path(work), slots)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    machine = {
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
        except KeyboardInterrupt:  # a terminal also sends it to the workers
            return
        except Exception:  # noqa: BLE001 - the other runs continue; this one can be run again
            print(f"{run.name} failed:\n{traceback.format_exc()}", file=sys.stderr, flush=True)
            continue
        path = Path(out) / run.path
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_suffix(f".{os.getpid()}")
        scratch.write_text(json.dumps({**result, **machine}, indent=None) + "\n", encoding="utf-8")
        scratch.rename(path)
        e, c = result["evaluation"], result["clock"]
        parts = ("generation", "environment", "update")
        total = max(sum(c[part] for part in parts), 1e-9)
        updates = 60 * run.updates / max(result["seconds"], 1e-9)
        tokens = c["tokens"] / max(c["generation"], 1e-9)
        print(
            f"{run.name}: success {e['success']:.1%}, return {e['return']:.3f}, "
            f"{e['turns']:.1f} turns; {result['seconds']:.0f} s, {updates:.0f} updates/min, "
            f"{tokens:.0f} tokens/s, time: "
            + ", ".join(f"{part} {c[part] / total:.0%}" for part in parts),
            flush=True,
        )


def selected_runs(names: Sequence[str]) -> list[Run]:
    """Return the runs of the plan that the names select; without names, all of them.

    A name is that of a run, of a cell (the run without its seed) or, if there is no such cell, the
    beginning of run names.
    """
    runs = plan()
    if not names:
        return runs
    cells = {run.cell for run in runs}
    return [
        run
        for run in runs
        if any(run.cell == name if name in cells else run.name.startswith(name) for name in names)
    ]


def missing_runs(names: Sequence[str], out: Path) -> list[Run]:
    """Return the selected runs that are not done."""
    runs = selected_runs(names)
    if not runs:
        raise ConfigError(f"no run name starts with any of {list(names)}; `list` shows all runs")
    return [run for run in runs if not (out / run.path).is_file()]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, about in (
        ("list", "list the runs, and which are done"),
        ("lesson", "make the model of all runs by SFT warm-up"),
        ("run", "run all that are not done"),
        ("report", "write the tables and figures"),
        ("reproduce", "run some again, and compare them with the recorded results"),
    ):
        command = commands.add_parser(name, help=about)
        command.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
        if name in ("list", "run"):
            command.add_argument(
                "only", nargs="*", help="cells, or beginnings of run names such as main/"
            )
        if name == "reproduce":
            command.add_argument(
                "only",
                nargs="+",
                help="cells such as main/Hangman-v0-easy-grpo, or runs such as that with -0",
            )
        if name in ("lesson", "run", "reproduce"):
            command.add_argument(
                "--work",
                type=Path,
                default=Path("runs/algorithms"),
                help="folder for the model and problems",
            )
        if name in ("lesson", "reproduce"):
            command.add_argument(
                "--model", default="smollm2", help="'tiny', 'smollm2' or a model folder"
            )
            command.add_argument("--updates", type=int, default=120)
            command.add_argument("--count", type=int, default=48, help="episodes per environment")
        if name in ("run", "reproduce"):
            command.add_argument(
                "--workers", type=int, default=1, help="processes that share the GPU"
            )
            command.add_argument(
                "--slots", type=int, default=128, help="concurrent episodes per process"
            )
            command.add_argument(
                "--seconds", type=float, default=float("inf"), help="start no run after this time"
            )
    args = parser.parse_args(argv)
    if args.command == "report":
        from algorithms_report import report

        report(args.out)
        return 0
    if args.command == "list":
        missing = {run.name for run in missing_runs(args.only, args.out)}
        for run in selected_runs(args.only):
            print(f"{'-' if run.name in missing else 'done':5}{run.name}")
        return 0
    for name in ("updates", "count", "workers", "slots"):
        if getattr(args, name, 1) < 1:
            raise ConfigError(f"--{name} must be 1 or more; got {getattr(args, name)}")
    folder = args.work / "model"
    if args.command == "lesson":
        make_model(args)
        return 0
    results = args.out
    if args.command == "reproduce":
        results = args.work / "reproduced"
        missing_runs(args.only, results)  # raises for an unknown name before anything is trained
        if not (folder / "config.json").is_file():
            make_model(args)
    todo = missing_runs(args.only, results)
    if not (folder / "config.json").is_file():
        raise ConfigError(
            f"no model in {folder}; make it first: algorithms.py lesson --work {args.work}"
        )
    if any(run.updates and run.rate is None for run in todo):
        rates = tuned(args.out)
        todo = [
            replace(run, rate=rates[run.algorithm]) if run.updates and run.rate is None else run
            for run in todo
        ]
    code = train_all(todo, args, results)
    if args.command == "reproduce" and code == 0:
        from algorithms_reproduce import compared

        names = [run.name for run in selected_runs(args.only)]
        print(compared(names, args.out, results))
    return code


def make_model(args: argparse.Namespace) -> None:
    """Make the model that all runs start from."""
    prepare(args.work)
    model, tokenizer = load(args.model)
    with_tools = [replace(s, tools=tools) for s, used in TOOLS.values() for tools in ("", used)]
    settings = [setting.in_folder(args.work) for setting in (*SETTINGS, LONG, *with_tools)]
    began = time.time()
    loss = warm_up(model, tokenizer, settings, args.updates, args.count)
    folder = args.work / "model"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    seconds = time.time() - began
    print(f"loss {loss:.3f}, {seconds:.0f} s; the model ({fingerprint(model)}) is in {folder}")


def train_all(todo: Sequence[Run], args: argparse.Namespace, results: Path) -> int:
    """Train runs in worker processes and return the exit code."""
    folder = args.work / "model"
    prepare(args.work)
    context = multiprocessing.get_context("spawn")
    runs = context.Queue()
    for run in todo:
        runs.put(run)
    deadline = time.time() + args.seconds
    folders = (str(folder), str(args.work), str(results))
    settings = (*folders, runs, args.workers, args.slots, deadline)
    workers = [
        context.Process(target=run_worker, args=settings)
        for _ in range(min(args.workers, len(todo)))
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
    missing = len(missing_runs(args.only, results))
    print(f"{len(todo) - missing} runs in {time.time() - began:.0f} s, {missing} missing")
    return 0 if not missing or time.time() > deadline else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (GemError, OSError) as error:
        sys.exit(f"error: {error}")
