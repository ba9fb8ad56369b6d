"""The training of `algorithms.py`: one run with its rollouts, updates, critic and evaluation.

Several trainers can share a process: their runs are coroutines of one event loop, and the turns of
their episodes are sampled together.
"""

from __future__ import annotations

import asyncio
import copy
import gc
import random
import secrets
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any, NamedTuple

import brief  # noqa: F401 - registers its wrapper
import corridor  # also registers its environment
import credit  # noqa: F401 - registers environments and an estimator
import torch
import uneven  # noqa: F401 - registers its environment
from algorithms_model import ROOM, Critic, Optimizer, flat, logprobs_of, micro_batches
from algorithms_plan import HELD_OUT, Run, Setting, Steps
from continuous import ContinuousPolicy
from horizon import parse_horizon
from packed import PackedTrunk

from gem_core import (
    Episode,
    Limits,
    Renderer,
    Rollout,
    Sampling,
    advantages,
    tasks_for,
    token_sequences,
)
from gem_core.errors import ConfigError, PolicyError

CONTEXT = 1024
CRITIC_RATE = 5e-5
ONE_STEP = Steps()


class Update(NamedTuple):
    """Metrics of the optimizer steps of a batch."""

    grad_norm: float
    """Mean over the steps, before clipping."""
    apart: float
    """Mean difference between the logprobs of sampler and trainer before the first step."""
    clipped: float
    """Share of the tokens whose ratio is outside PPO's clip range."""
    ratio_gap: float
    """Mean of |ratio - 1|; 0 for a single step on the sampled batch."""


@dataclass
class Clock:
    """Seconds in which turns were sampled, of the rest of the rollout, and of updates.

    With several lanes they are wrong: an update blocks the other lanes, which count its time as
    sampling or rollout.
    """

    generation: float = 0.0
    environment: float = 0.0
    update: float = 0.0
    tokens: int = 0


class Trainer:
    """A model, its rollout engine, and the initial weights of every run."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        work: Path,
        slots: int = 128,
        room: int = ROOM,
        context: int = CONTEXT,
        policy: ContinuousPolicy | None = None,
    ) -> None:
        """`policy` samples from the model; by default, one that samples from no other model."""
        self.room, self.context = room, context
        self.model, self.tokenizer, self.work, self.slots = model, tokenizer, work, slots
        self.base = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
        # a micro-batch may have a little more tokens than there is room for
        self.graph_tokens = room + room // 8 if model.device.type == "cuda" else 0
        self.trunk = PackedTrunk(model.model, graph_tokens=self.graph_tokens)
        self.policy = policy or ContinuousPolicy(model, tokenizer, slots=slots, context=context)
        self.renderer = Renderer(tokenizer)
        self.engine = Rollout(self.policy, self.renderer, concurrency=slots)
        self.concurrency = slots
        self.critic_losses: list[float] = []
        """Of a run's `critic_batches`."""

    @classmethod
    def several(
        cls, count: int, model: Any, tokenizer: Any, work: Path, slots: int, room: int, context: int
    ) -> list[Trainer]:
        """Return trainers with a copy of the model each, which are sampled from together."""
        models = [model, *(copy.deepcopy(model) for _ in range(count - 1))]
        policies = ContinuousPolicy.for_models(
            models, tokenizer, slots=slots, context=context, seed=secrets.randbits(63)
        )
        trainers = [
            cls(own, tokenizer, work, slots, room, context, policy)
            for own, policy in zip(models, policies)
        ]
        for trainer in trainers:
            trainer.base = trainers[0].base  # one copy of the initial weights
        return trainers

    def train(self, run: Run) -> dict[str, Any]:
        """Run `train_run` from synchronous code."""
        return asyncio.run(self.train_run(run))

    async def train_run(self, run: Run) -> dict[str, Any]:
        """Train and evaluate one run; return the content of its result file."""
        self.concurrency = min(self.slots, run.concurrency or self.slots)
        try:
            if run.rollout != "sync":
                from async_training import train_async

                return await train_async(self, run)
            if run.expert_updates:
                from scenarios import train_scenario

                return await train_scenario(self, run)
            return await self._train(run)
        finally:
            self.engine.close()  # closes the environments; the next run has others

    async def _train(self, run: Run) -> dict[str, Any]:
        self.restore(run.seed)
        clock, began = Clock(), time.time()
        curve = await self.updates(run, clock)
        return await self.result(run, curve, clock, time.time() - began)

    def restore(self, seed: int) -> None:
        """Load the initial weights, and seed the sampling if no other run shares the engine.

        Otherwise the other runs would sample with the same noise again.
        """
        self.critic_losses = []
        self.policy.resume()  # a failed run may have left it paused
        self.model.load_state_dict(self.base)
        if self.policy.lanes == 1:
            self.policy.seed(seed)
        self.policy.refresh()

    async def updates(self, run: Run, clock: Clock) -> list[dict[str, Any]]:
        """Train with RL from the current weights; return the metrics of each update."""
        optimizer = Optimizer(self.model, run.rate or 0.0)
        critic = Critic(self.model, self.graph_tokens) if run.algorithm == "ppo" else None
        critic_optimizer = Optimizer(critic, CRITIC_RATE) if critic is not None else None
        rng = random.Random(run.seed)
        horizon = parse_horizon(run.horizon)
        curve: list[dict[str, Any]] = []
        if critic is not None and critic_optimizer is not None:
            for _ in range(run.critic_batches):
                batch = await self.play_batch(run, rng, horizon([]), clock)
                own = self.critic_advantages(batch, critic, critic_optimizer, run.gamma, run.lam)
                self.critic_losses.append(own[1])
        elif run.critic_batches:
            raise ConfigError(f"{run.name} has critic_batches, but {run.algorithm} has no critic")
        while len(curve) < run.updates and not _spent(curve, run.token_budget):
            step_began = time.time()
            turns = horizon([line["success"] for line in curve])
            batch = await self.play_batch(run, rng, turns, clock)
            update_began = time.time()
            metrics: dict[str, Any] = {}
            if critic is not None and critic_optimizer is not None:
                per_turn, metrics["value_loss"] = self.critic_advantages(
                    batch, critic, critic_optimizer, run.gamma, run.lam
                )
            else:
                per_turn = advantages(batch, run.algorithm, gamma=run.gamma)
            metrics |= self.update(batch, per_turn, optimizer, run.steps, rng)._asdict()
            self.policy.refresh()
            clock.update += time.time() - update_began
            if run.horizon:
                metrics["horizon"] = turns
            curve.append({**summary(batch), **metrics, "seconds": time.time() - step_began})
        return curve

    async def result(
        self, run: Run, curve: Sequence[dict[str, Any]], clock: Clock, seconds: float
    ) -> dict[str, Any]:
        """Evaluate the trained model and return the content of the run's result file."""
        evaluation = await self.evaluate(run.setting, run.evaluated)
        transfer = {s.name: await self.evaluate(s, run.evaluated) for s in run.transfer}
        names = curve[0] if curve else {}
        losses = [_rounded(loss) for loss in self.critic_losses]
        return {
            "run": asdict(run),
            "evaluation": evaluation,
            **({"transfer": transfer} if transfer else {}),
            **({"critic_losses": losses} if losses else {}),
            "curve": {name: [_rounded(line[name]) for line in curve] for name in names},
            "seconds": round(seconds, 2),
            "clock": {name: round(value, 2) for name, value in asdict(clock).items()},
        }

    async def play_batch(
        self, run: Run, rng: random.Random, turns: int | None, clock: Clock
    ) -> list[Episode]:
        """Play the episodes of one update."""
        settings = run.mixture or (run.setting,)
        count = run.episodes // run.samples // len(settings)
        batch = []
        for setting in settings:
            seeds = [rng.randrange(HELD_OUT) for _ in range(count)]
            batch += await self.play(setting, seeds, run.samples, turns, clock)
        return batch

    def configure(self, setting: Setting, turns: int | None = None) -> None:
        """Set the limits of the next episodes: the setting's, or fewer turns."""
        limits = Limits(
            max_turns=turns or setting.turns, max_context=self.context - 2, step_deadline=60.0
        )
        sampling = Sampling(temperature=1.0, max_tokens=setting.tokens)
        self.engine.configure(
            self.policy,
            self.renderer,
            sampling=sampling,
            limits=limits,
            concurrency=self.concurrency,
        )

    async def evaluate(self, setting: Setting, count: int) -> dict[str, Any]:
        """Play held-out seeds, with the environment's turn limit, not with the training horizon.

        `returns` has the return of each seed; a failed episode has none.
        """
        setting = replace(setting, kwargs={**setting.kwargs, **setting.eval_kwargs})
        episodes = await self.play(setting, range(HELD_OUT, HELD_OUT + count), 1, None, Clock())
        returns = [None if e.failed else _rounded(e.total_reward) for e in episodes]
        numbers = {name: _rounded(value, digits=8) for name, value in summary(episodes).items()}
        return {**numbers, "returns": returns}

    async def play(
        self, setting: Setting, seeds: Iterable[int], samples: int, turns: int | None, clock: Clock
    ) -> list[Episode]:
        """Play a batch of episodes, and add its time to the clock.

        Raises `PolicyError` if the policy failed in more than a tenth of the episodes: a run must
        not train on the rest.
        """
        began, busy, tokens = time.time(), self.policy.seconds, self.policy.tokens
        setting = setting.in_folder(self.work)
        tasks = tasks_for(
            setting.env, seeds, samples=samples, wrappers=setting.tools, env_kwargs=setting.kwargs
        )
        self.configure(setting, turns)
        episodes = await self.engine.batch(tasks)
        failures = [e.failure for e in episodes if e.failure and e.failure.where == "generate"]
        if len(failures) > len(episodes) / 10:
            raise PolicyError(
                f"the policy failed in {len(failures)} of {len(episodes)} episodes of "
                f"{setting.env}, the first time with: {failures[0]}"
            )
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
        self,
        episodes: Sequence[Episode],
        per_turn: Sequence[Sequence[float]],
        optimizer: Optimizer,
        steps: Steps = ONE_STEP,
        rng: random.Random | None = None,
        corrected: bool = False,
    ) -> Update:
        """Take the optimizer steps of a batch, with the loss above or, after the first, PPO's.

        `corrected`: use the clipped ratio to the recorded logprobs also in the first step, because
        other weights sampled the batch.
        """
        items = [
            (sequence, sequence.broadcast(turns))
            for e, turns in zip(episodes, per_turn)
            for sequence in token_sequences(e)
        ]
        old: dict[int, torch.Tensor] = {}
        if corrected:
            device = self.model.device
            old = {id(s): flat([s.logprobs], [s.mask], device) for s, _ in items}
        elif steps.epochs * steps.mini_batches > 1:
            with torch.no_grad():
                for part in self._micro_batches(items):
                    flat_logp = self._logprobs(part)
                    counts = [sum(sequence.mask) for sequence, _ in part]
                    parts = zip(part, flat_logp.split(counts))
                    old |= {id(sequence): own for (sequence, _), own in parts}
        norms, differences, clipped_counts, gaps = [], [], [], []
        for epoch in range(steps.epochs):
            if rng is not None and steps.mini_batches > 1:
                rng.shuffle(items)
            for i in range(steps.mini_batches):
                mini_batch = items[i :: steps.mini_batches]
                tokens = max(sum(sum(sequence.mask) for sequence, _ in mini_batch), 1)
                for part in self._micro_batches(mini_batch):
                    logp = self._logprobs(part)
                    before = torch.cat([old[id(s)] for s, _ in part]) if old else logp.detach()
                    masks = [sequence.mask for sequence, _ in part]
                    advantage = flat([per_token for _, per_token in part], masks, logp.device)
                    ratio = (logp - before).exp()
                    clipped = ratio.clamp(1 - steps.clip, 1 + steps.clip)
                    loss = -torch.minimum(ratio * advantage, clipped * advantage).sum() / tokens
                    loss.backward()
                    clipped_counts.append((ratio != clipped).sum())
                    gaps.append((ratio.detach() - 1).abs().sum())
                    if epoch == 0:
                        sampled = flat([s.logprobs or s.mask for s, _ in part], masks, logp.device)
                        current = logp.detach() if corrected else before
                        differences.append((current - sampled).abs().sum())
                norms.append(optimizer.step())
        sampled = max(sum(sum(sequence.mask) for sequence, _ in items), 1)
        trained = steps.epochs * sampled
        sums = [float(sum(values)) for values in (differences, clipped_counts, gaps)]
        return Update(fmean(norms), sums[0] / sampled, sums[1] / trained, sums[2] / trained)

    def _micro_batches(self, items: Sequence[Any]) -> Iterator[list[Any]]:
        return micro_batches(items, [len(sequence.ids) for sequence, _ in items], self.room)

    def _logprobs(self, part: Sequence[Any]) -> torch.Tensor:
        sequences, masks = [s.ids for s, _ in part], [s.mask for s, _ in part]
        return logprobs_of(self.model, self.trunk, sequences, masks)

    def critic_advantages(
        self,
        episodes: Sequence[Episode],
        critic: Critic,
        optimizer: Optimizer,
        gamma: float,
        lam: float = 0.95,
    ) -> tuple[list[list[float]], float]:
        """Return whitened GAE advantages per turn, and train the critic on the returns.

        A turn limit is part of the rules here, so the value after it is 0, as after the end.
        """
        values: dict[int, list[float]] = {}
        pairs = [(sequence, e) for e in episodes for sequence in token_sequences(e)]
        turns = sum(len(sequence.spans) for sequence, _ in pairs)
        total = 0.0
        for part in micro_batches(pairs, [len(s.ids) for s, _ in pairs], self.room):
            positions = [[begin - 1 for _, begin, _ in sequence.spans] for sequence, _ in part]
            predicted = critic([sequence.ids for sequence, _ in part], positions)
            numbers = iter(predicted.tolist())
            part_values = [[next(numbers) for _ in before_turns] for before_turns in positions]
            part_episodes = [e for _, e in part]
            raw = advantages(
                part_episodes, "gae", values=_with_final(part_values), gamma=gamma, lam=lam
            )
            targets = [a + v for gae, known in zip(raw, part_values) for a, v in zip(gae, known)]
            targets_N = torch.tensor(targets, device=predicted.device)
            loss = (predicted - targets_N).square().sum() / turns
            loss.backward()
            total += loss.item()
            values.update({id(e): known for e, known in zip(part_episodes, part_values)})
        optimizer.step()
        known = _with_final([values.get(id(e), [0.0] * len(e.turns)) for e in episodes])
        whitened = advantages(episodes, "gae", values=known, gamma=gamma, lam=lam, whiten=True)
        return whitened, total


def _with_final(values: Sequence[Sequence[float]]) -> list[list[float]]:
    """Append the value after the last turn, 0."""
    return [[*per_turn, 0.0] for per_turn in values]


def exclude_from_gc() -> None:
    """Exclude all objects so far from garbage collection, at the first call.

    Otherwise the collector pauses again and again to visit the objects of all modules. Reference
    cycles among these objects are never freed.
    """
    if not gc.get_freeze_count():
        gc.collect()
        gc.freeze()


def summary(episodes: Sequence[Episode]) -> dict[str, Any]:
    """Return the metrics of a batch, over the episodes that did not fail.

    `stops` counts why all episodes ended, also the failed ones. Only corridors have
    `success_by_rooms`.
    """
    known = [e for e in episodes if not e.failed]
    logprobs = [logprob for e in known for t in e.turns for logprob in t.logprobs or ()]
    by_rooms = corridor.success_by_rooms(known)
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
        "logprob": fmean(logprobs) if logprobs else None,
        "stops": dict(sorted(Counter(e.stop.value for e in episodes).items())),
        **({"success_by_rooms": by_rooms} if by_rooms else {}),
        "failed": len(episodes) - len(known),
    }


def _spent(curve: Sequence[dict[str, Any]], budget: int | None) -> bool:
    """Return whether the updates so far have sampled all tokens of a budget."""
    return budget is not None and sum(line["tokens"] for line in curve) >= budget


def _rounded(value: Any, digits: int = 4) -> Any:
    """Round a number, or the numbers of a dict, to significant digits."""
    if isinstance(value, dict):
        return {key: _rounded(own, digits) for key, own in value.items()}
    return None if value is None else float(f"{value:.{digits}g}")
