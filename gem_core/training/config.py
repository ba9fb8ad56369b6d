"""Training spec: what a user says about an environment to train on, in the same words for every trainer.

An adapter extends it by what only its framework has, and names itself in `adapter`: what the framework cannot do is refused
here, before a model is loaded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from gem_core.adapter_kit.declaration import Adapter
from gem_core.env.registry import canonical_wrappers, check_make, spec
from gem_core.env.wrapper_stack import parse_wrappers
from gem_core.errors import ConfigError
from gem_core.rollout.limits import Limits
from gem_core.training.advantage import advantages, check_estimator, estimators
from gem_core.training.horizon import HorizonSchedule
from gem_core.training.moments import Gather
from gem_core.types import Episode, Task

__all__ = ["TrainingSpec"]

_HELD_OUT = 1_000_000
_REWRITES = {
    "concat": "rewrites the context every turn",
    "concat_with_action": "rewrites the context every turn",
    "concat_chat": "rewrites the context when its window moves or a suffix goes",
}


@dataclass
class TrainingSpec:
    """An environment, the starts to train on, how turns are credited, and what an episode may cost."""

    adapter: ClassVar[Adapter]
    """The trainer this is for; set by each adapter's own spec."""

    env_id: str
    """An environment id, or a mixture such as `2*game:A + 1*game:B`."""
    seeds: int | Sequence[int] = 1024
    """The starts to train on: so many, or these."""
    eval_seeds: int | Sequence[int] = 0
    """The starts to evaluate on; a number counts from one million up. One that is trained on is refused."""
    wrappers: Sequence[Any] | str = ()
    """By name, innermost first."""
    tools: Sequence[Any] | str = ()
    """By name, put around the wrappers."""
    options: Mapping[str, Any] = field(default_factory=dict)
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    eval_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """What the environment is made with, beyond `env_kwargs`, for the starts to evaluate on. A seed draws a row of a data set,
    and another seed may draw the same one: give the split that is not trained on, as in {"split": "test"}."""
    advantage: str = "rebn"
    """Any registered estimator whose needs the trainer can meet."""
    gamma: float = 1.0
    """The discount per turn."""
    estimator_kwargs: Mapping[str, Any] = field(default_factory=dict)
    max_turn_tokens: int | None = None
    """The cap on one turn; None is the trainer's own cap on a response."""
    max_context: int | None = None
    """Tokens of a prompt and its generation, where that is less than the model can take."""
    horizon: HorizonSchedule | int | str | Sequence[int] | Mapping[str, Any] | None = None
    """Turns of an episode, fixed or growing with the updates, each of which is one batch of episodes."""
    on_cut: Literal["step", "mask", "end"] = "step"
    """What becomes of a turn that hits its token cap; see `Limits`."""
    make_deadline: float | None = None
    step_deadline: float | None = None
    episode_deadline: float | None = None
    retries: int = 0
    """How often an episode may go on after an environment, or a server that generates, failed. An engine in the trainer's own
    process is not tried again: where it fails, so does the run."""
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """For the chat template, as in {"enable_thinking": False}."""
    record: str | None = None
    """Where to append every episode, as JSON lines; `{rank}` stands for the process."""

    def __post_init__(self) -> None:
        self.horizon = HorizonSchedule.parse(self.horizon)
        if not 0.0 <= self.gamma <= 1.0:
            raise ConfigError(f"gamma must be between 0 and 1; given: {self.gamma!r}")
        self._refuse_estimator()
        for more in ({}, self.eval_kwargs):  # names nobody knows are refused now: later, every episode would fail by them
            check_make(self.env_id, wrappers=self.all_wrappers, options=self.options, env_kwargs={**self.env_kwargs, **more})
        self._refuse_rewriting()
        overlap = set(self.train_seeds) & set(self.held_out_seeds)
        if overlap:
            raise ConfigError(
                f"{len(overlap)} of the seeds to evaluate on are trained on, among them {min(overlap)}; keep them apart"
            )
        self.limits(0)  # a limit that means nothing is refused now

    @property
    def all_wrappers(self) -> tuple[Any, ...]:
        """Wrappers and tools, innermost first."""
        return (*parse_wrappers(self.wrappers), *parse_wrappers(self.tools))

    @property
    def train_seeds(self) -> list[int]:
        """The starts to train on."""
        return _seeds(self.seeds, 0)

    @property
    def held_out_seeds(self) -> list[int]:
        """The starts to evaluate on."""
        return _seeds(self.eval_seeds, _HELD_OUT)

    def task(self, seed: int, index: int = 0) -> Task:
        """One episode from one start."""
        more = self.eval_kwargs if self.eval_kwargs and seed in set(self.held_out_seeds) else {}
        return Task(self.env_id, seed, dict(self.options), self.all_wrappers, {**self.env_kwargs, **more}, index)

    def limits(self, step: int, *, max_context: int | None = None, max_response: int | None = None) -> Limits:
        """What an episode may cost after `step` finished updates; where spec and trainer both cap a context, the smaller cap."""
        caps = [cap for cap in (self.max_context, max_context) if cap is not None]
        return Limits(
            max_turns=self.horizon(step) if isinstance(self.horizon, HorizonSchedule) else None,
            max_context=min(caps, default=None),
            max_response=max_response,
            make_deadline=self.make_deadline,
            step_deadline=self.step_deadline,
            episode_deadline=self.episode_deadline,
            retries=self.retries,
            on_cut=self.on_cut,
        )

    def credit(self, episodes: Sequence[Episode], gather: Gather | None = None) -> list[list[float]]:
        """One number per turn, by the spec's estimator, with statistics over all ranks."""
        return advantages(episodes, self.advantage, gamma=self.gamma, gather=gather, **self.estimator_kwargs)

    def rewriting_wrapper(self) -> str | None:
        """The wrapper that makes an episode several rows, if one does. An environment's own wrappers count too; a suffix that
        rewrites the past is only seen when it is played."""
        for item in json.loads(canonical_wrappers(spec(self.env_id).id, self.all_wrappers)):
            name, arguments = item if isinstance(item, list) else (item, {})
            harmless = name == "concat_chat" and arguments.get("window") is None and arguments.get("template") is None
            if name in _REWRITES and not harmless:
                return str(name)
        return None

    def _refuse_estimator(self) -> None:
        can = self.adapter.capabilities
        needs = estimators.get(self.advantage).needs
        for need, there, what in (("values", can.critic_values, "a critic"), ("groups", can.groups, "groups from one start")):
            if need in needs and not there:
                raise ConfigError(
                    f"the estimator {self.advantage!r} needs {what}, which {self.adapter.name} does not offer; 'rebn' needs none"
                )
        check_estimator(self.advantage, {"gamma", "gather", *self.estimator_kwargs, *(needs & {"values"})})

    def _refuse_rewriting(self) -> None:
        name = None if self.adapter.capabilities.several_rows else self.rewriting_wrapper()
        if name is not None:
            raise ConfigError(
                f"the wrapper {name!r} {_REWRITES[name]}, so that an episode is several rows, and {self.adapter.name} takes "
                "one row per episode; leave it out (the engine keeps the whole conversation), or use 'concat_chat_on_reset'"
            )


def _seeds(given: int | Sequence[int], start: int) -> list[int]:
    if isinstance(given, bool) or (isinstance(given, int) and given < 0):
        raise ConfigError(f"seeds is a number of starts, or a list of them; given: {given!r}")
    return list(range(start, start + given)) if isinstance(given, int) else [int(s) for s in given]
