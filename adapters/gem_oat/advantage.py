"""Advantage: gem's estimators in place of oat's advantages, one number per transition, with statistics over all ranks.

oat computes advantages in `PPOMultiTurnLearner.process_feedback_data`, which a learner may override. Ours calls oat's, for the
critic's values and the buffer, then writes its own numbers where oat's loss reads them. The loss is oat's own.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from oat.algorithms.ppo_multiturn import PPOMultiTurnLearner

from gem_core.errors import GemError
from gem_core.training.advantage import advantages
from gem_core.training.metrics import BatchMetrics
from gem_core.training.moments import Gather
from gem_oat.convert import GemTransition
from gem_oat.rollout import SUMS

__all__ = ["BatchSizeError", "GemLearner", "gather_over", "put_advantages"]

_HELD_OUT = ("success", "return", "turns", "failed")


class BatchSizeError(GemError, RuntimeError):
    """Raised when a batch is not of the size oat was promised: oat would leave out some of it at random, or wait for more."""


class GemLearner(PPOMultiTurnLearner):
    """oat's multi-turn learner with per-turn advantages by the estimator that `args.gem` names."""

    def _init(self, args: Any, actors: list[Any]) -> None:
        super()._init(args, actors)
        self._logged = 0
        if self.critic is not None:
            read_at_the_end(self.critic)

    def prepare_data(self, strategy: Any, tokenizer: Any) -> None:
        """`max_train` transitions' worth of nothing: oat draws its prompts from here, and gem's environments make their own."""
        args = strategy.args
        self.prompts_dataset = [("", "", "")] * args.max_train
        self.prompts_dataloader = strategy.setup_dataloader(self.prompts_dataset, args.rollout_batch_size_per_device)
        self.eval_prompts_dataset, self.eval_prompts_dataloader = [], None

    def process_feedback_data(self, data_list: Sequence[Sequence[GemTransition]]) -> None:
        """oat's own, which may leave nothing out; then gem's advantages and metrics."""
        size = self.args.rollout_batch_size_per_device
        found = sum(map(len, data_list))
        if found != size:
            raise BatchSizeError(f"a batch of {found} transitions reached the learner, and it takes {size}; use gem_oat's actor")
        super().process_feedback_data(data_list)
        settle_fillers(self, data_list)
        sizes = put_advantages(self, data_list)
        self.actor_info = over_all_ranks(self.strategy, self.actor_info, sizes)

    def evaluate(self, dataloader: Any, steps: int) -> dict[str, float]:
        """Plays the starts that are held out, on all actors of this group."""
        self._pre_evaluate()
        found = dict.fromkeys(_HELD_OUT, 0.0)
        if self.strategy.is_rank_0():
            seeds = self.args.gem.held_out_seeds
            asked = [a.futures.play_held_out(seeds[i :: len(self.actors)]) for i, a in enumerate(self.actors)]
            means = BatchMetrics.total(BatchMetrics(**answer.result()) for answer in asked).means()
            found |= {name: means[name] for name in _HELD_OUT if name in means}
        found = self.strategy.broadcast(found)
        self._post_evaluate()
        return {f"eval/{name}": number for name, number in found.items()}

    def eval_and_log(self, train_info: dict[str, Any], eval: bool = False, save: bool = False) -> None:
        """oat's own; and a line in `GemConfig.metrics` after each update."""
        super().eval_and_log(train_info, eval, save)
        path, done = self.args.gem.metrics, train_info.get("train/learning_round", 0)
        if path is None or done == self._logged or not self.strategy.is_rank_0():  # oat logs the last update twice
            return
        self._logged = done
        line = {"update": done - 1, **train_info, **self.actor_info}
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps({name: float(number) for name, number in line.items()}) + "\n")


def put_advantages(learner: Any, data_list: Sequence[Sequence[GemTransition]]) -> dict[str, float]:
    """Writes gem's numbers over oat's: 0 where nothing is trained. Returns the sums their mean size is made of."""
    spec = learner.args.gem
    for transition in (t for transitions in data_list for t in transitions):
        transition.info["advantages"] = 0.0
    played = [transitions for transitions in data_list if transitions and transitions[0].episode is not None]
    episodes = [transitions[0].episode for transitions in played]
    values = None if learner.critic is None else put_targets(learner, data_list, played)
    sizes = {"trained": 0.0, "advantages": 0.0}
    for transitions, numbers in zip(played, spec.credit(episodes, gather_over(learner.strategy), values)):
        for transition, number in zip(transitions, numbers):
            transition.info["advantages"] = number
            if transition.loss_mask:
                sizes["trained"] += 1.0
                sizes["advantages"] += abs(number)
    return sizes


def put_targets(
    learner: Any, data_list: Sequence[Sequence[GemTransition]], played: Sequence[Sequence[GemTransition]]
) -> list[list[float]]:
    """Writes what the critic is to learn, V_t + A_t by GAE, over oat's. Returns its values, those of cut states included."""
    for transition in (t for transitions in data_list for t in transitions):
        # a target of its own value trains nothing: that is for fillers, and for turns that are masked
        transition.info["returns"] = transition.info["values"] = float(transition.info["values"])
    values = [[t.info["values"] for t in transitions] for transitions in played]
    cut = [number for number, transitions in enumerate(played) if transitions[-1].cut_state]
    # with sharded weights every rank takes part in every forward pass, so that all have to make as many
    for asked in range(int(learner.strategy.all_reduce(len(cut), op="max"))):
        number = cut[asked] if asked < len(cut) else None
        value = value_of(learner.critic, (0,) if number is None else played[number][-1].cut_state)
        if number is not None:
            values[number].append(value)
    spec, episodes = learner.args.gem, [transitions[0].episode for transitions in played]
    targets = advantages(episodes, "gae", gamma=spec.gamma, lam=spec.lam, values=values)
    for transitions, numbers in zip(played, targets):
        for transition, number in zip(transitions, numbers):
            transition.info["returns"] += number
    return values


def settle_fillers(learner: Any, data_list: Sequence[Sequence[GemTransition]]) -> None:
    """Fillers get the logprob the learner gives their token: what oat logs about sampler and learner is then not about them."""
    fillers = [t for transitions in data_list for t in transitions if t.episode is None]
    ids = [*fillers[0].prompt_ids, *fillers[0].response_ids] if fillers else [0, 0]  # all ranks take part, as above
    row = torch.tensor([ids]).to(torch.cuda.current_device())
    with torch.no_grad():
        logprobs, _ = learner.get_batch_logps(learner.model, row, torch.ones_like(row), temperature=learner.args.temperature)
    for transition in fillers:
        transition.response_logprobs = [float(logprobs[0, -1])]


def gather_over(strategy: Any) -> Gather:
    """Collects one object from every rank by oat's own strategy, whichever device its tensors have to be on."""

    def gather(mine: Any) -> list[Any]:
        data = torch.frombuffer(bytearray(pickle.dumps(mine)), dtype=torch.uint8)
        sizes = strategy.all_gather(torch.tensor([len(data)])).tolist()
        padded = torch.zeros(max(sizes), dtype=torch.uint8)
        padded[: len(data)] = data
        whole = strategy.all_gather(padded).reshape(len(sizes), -1)
        return [pickle.loads(bytes(row[:size].tolist())) for row, size in zip(whole, sizes)]

    return gather


def over_all_ranks(strategy: Any, info: dict[str, Any], sizes: dict[str, float]) -> dict[str, Any]:
    """oat's numbers as they are, and what gem's actors counted, of all ranks together, under `gem/`."""
    mine = {name.removeprefix(SUMS): number for name, number in info.items() if name.startswith(SUMS)}
    sums = strategy.all_reduce({**mine, **sizes}, op="sum")
    kept = {name: number for name, number in info.items() if not name.startswith(SUMS)}
    if not mine:
        return kept
    transitions, fillers, older = sums.pop("transitions"), sums.pop("fillers"), sums.pop("older")
    trained, total = sums.pop("trained"), sums.pop("advantages")
    found = BatchMetrics(**sums).means()
    found["episodes"] = sums["episodes"]
    found["fillers"] = fillers / (transitions + fillers)
    found["older_weights"] = older / transitions if transitions else 0.0
    found["advantage_abs"] = total / trained if trained else 0.0
    return {**kept, **{f"gem/{name}": number for name, number in found.items()}}


def value_of(critic: Any, ids: Sequence[int]) -> float:
    """The critic's value of one state, asked as oat asks it."""
    state = torch.tensor([list(ids)]).to(torch.cuda.current_device())
    with torch.no_grad():
        return float(critic(input_ids=state, attention_mask=torch.ones_like(state))[0, 0])


def read_at_the_end(critic: Any) -> None:
    """Lets oat read the critic behind the last token of a state.

    oat 0.2.4 takes the first token's value, `[0, 0]`; behind a causal model that token has seen nothing of the state, so that all
    states have one value. oat asks for one unpadded state at a time, so that the last column is the last token's.
    """
    critic.register_forward_hook(lambda module, inputs, values: values[:, -1:])
