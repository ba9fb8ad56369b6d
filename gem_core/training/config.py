"""Training config: the environment to train on and how, with the same fields for every trainer.

Each adapter extends it to its `GemConfig` and sets `adapter`. A setting that its trainer does not
support raises `ConfigError` here, before a model is loaded.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from gem_core.arguments import whole_number, whole_number_or_none
from gem_core.env.registry import canonical_wrappers, check_make, spec
from gem_core.env.wrapper_stack import parse_wrappers
from gem_core.errors import ConfigError
from gem_core.rollout.limits import Limits
from gem_core.rollout.renderer import Renderer, Tokenizer
from gem_core.training.advantage import advantages, check_estimator, estimators
from gem_core.training.horizon import HorizonSchedule
from gem_core.training.metrics_file import metrics_path
from gem_core.training.moments import Gather
from gem_core.types import Episode, Task

if TYPE_CHECKING:
    from typing_extensions import Self

    from gem_core.adapter_kit.declaration import Adapter

__all__ = ["FIRST_HELD_OUT_SEED", "TrainingConfig"]

FIRST_HELD_OUT_SEED = 1_000_000
"""The first evaluation seed if `eval_seeds` is a number."""
_REWRITES = {
    "concat": "rewrites the context every turn",
    "concat_with_action": "rewrites the context every turn",
    "concat_chat": "rewrites the context when its window moves or a suffix is removed",
    "memory": "starts a new context after each note",
}


@dataclass
class TrainingConfig:
    """The environment, the seeds, the advantage estimator and the limits of an episode."""

    adapter: ClassVar[Adapter]
    """The trainer's adapter; each `GemConfig` sets it."""

    env_id: str
    """An environment id, or a mixture such as `2*game:A + 1*game:B`."""
    seeds: int | Sequence[int] = 1024
    """The seeds to train on: how many, counted from 0, or a list."""
    eval_seeds: int | Sequence[int] = 0
    """The seeds to evaluate on: how many, counted from one million, or a list. They must not be
    training seeds."""
    wrappers: Sequence[Any] | str = ()
    """Wrappers around the environment by name, innermost first."""
    tools: Sequence[Any] | str = ()
    """Tools by name; they go around the wrappers."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of every `reset`."""
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the environment, as in `make(env_id, **env_kwargs)`."""
    eval_env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Further `env_kwargs` for evaluation. Two seeds may draw the same row of a dataset: name the
    split that is not trained on, as in {"split": "test"}."""
    advantage: str = "rebn"
    """The advantage estimator, by its registered name."""
    gamma: float = 1.0
    """The discount per turn."""
    estimator_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the estimator, as in {"scale": False} for `grpo`."""
    max_turn_tokens: int | None = None
    """The cap on the tokens of one turn; None uses the trainer's own cap on a response."""
    max_context: int | None = None
    """The cap on prompt and generation together, if lower than the model's context length."""
    horizon: HorizonSchedule | int | str | Sequence[int] | Mapping[str, Any] | None = None
    """The cap on the turns of an episode, as in 10, or in "4,7,10@80": growing every 80 updates."""
    on_cut: Literal["step", "mask", "end"] = "step"
    """How to treat a turn that hits its token cap; see `Limits`."""
    make_deadline: float | None = None
    """Seconds to make an environment."""
    step_deadline: float | None = 600.0
    """Seconds per reset or step; None waits forever."""
    episode_deadline: float | None = None
    """Seconds for the whole episode, retries included."""
    retries: int = 0
    """How many errors of the environment or of a generation server an episode survives. An engine
    in the trainer's own process is not retried: its errors end the run."""
    execution: Literal["declared", "process", "ray"] = "declared"
    """Where environments run: as their class declares, each in its own process, or on actors of the
    Ray cluster. Use the last two for environments that compute much in Python."""
    hosts: int | None = None
    """How many Ray actors hold the environments of one worker process; only with `execution="ray"`.
    None starts 2."""
    history: Literal["append", "template"] = "append"
    """How the next prompt keeps earlier turns. `append`: as they were sampled. `template`: as the
    chat template writes them; if it removes earlier thinking, an episode has several sequences."""
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the chat template, as in {"enable_thinking": False}."""
    max_failed_updates: int = 3
    """Training stops after this many updates in a row without a turn in the loss; 0: never."""
    record: str | None = None
    """The file to append every episode to, as JSON lines; `{rank}` is replaced by the rank."""
    metrics: str | None = None
    """The file to append the metrics of each update to, as JSON lines. The module
    `gem_core.adapter_kit.update_log` lists them."""

    def __post_init__(self) -> None:
        if (
            isinstance(self.gamma, bool)
            or not isinstance(self.gamma, (int, float))
            or not 0.0 <= self.gamma <= 1.0
        ):
            raise ConfigError(f"gamma must be a number between 0 and 1, got {self.gamma!r}")
        for name in ("max_turn_tokens", "max_context"):
            whole_number_or_none(name, getattr(self, name), 1, none="no cap of its own")
        self._check_estimator()
        for env_kwargs in (self.env_kwargs, {**self.env_kwargs, **self.eval_env_kwargs}):
            check_make(  # otherwise an unknown name would fail every episode
                self.env_id, wrappers=self.all_wrappers, options=self.options, env_kwargs=env_kwargs
            )
        self._check_history()
        self._check_execution()
        whole_number("max_failed_updates", self.max_failed_updates, 0)
        if self.record and self.metrics and Path(self.record) == metrics_path(self.metrics):
            raise ConfigError(f"record and metrics are the same file, {self.record}; use two")
        if not self.train_seeds:
            raise ConfigError(f"seeds={self.seeds!r} leaves nothing to train on; use 1 or more")
        overlap = set(self.train_seeds) & set(self.held_out_seeds)
        if overlap:
            raise ConfigError(
                f"{len(overlap)} of the evaluation seeds are trained on, such as {min(overlap)}; "
                "use different seeds"
            )
        self.limits(0)  # raises for an invalid limit

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], where: str = "the configuration") -> Self:
        """Create a config from plain data; error messages call its source `where`."""
        known = [each.name for each in fields(cls)]
        unknown = [str(name) for name in data if name not in known]
        if unknown:
            near = [(name, difflib.get_close_matches(name, known, 1)) for name in unknown]
            hints = "".join(
                f"; did you mean {match[0]!r} instead of {name!r}" for name, match in near if match
            )
            raise ConfigError(
                f"{where} has unknown fields: {', '.join(unknown)}{hints}. "
                f"Known fields: {', '.join(known)}"
            )
        if "env_id" not in data:
            raise ConfigError(
                f"{where} has no env_id; set it to an environment, such as 'game:Wordle-v0-easy'"
            )
        return cls(**data)

    def to_dict(self) -> dict[str, Any]:
        """Return the non-default fields as plain data for `from_dict`."""
        plain: dict[str, Any] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, HorizonSchedule):
                value = asdict(value)
            elif isinstance(value, range):  # seeds
                value = list(value)
            default = each.default if each.default_factory is MISSING else each.default_factory()
            if value != default:
                plain[each.name] = value
        try:
            decoded: dict[str, Any] = json.loads(json.dumps(plain))
        except TypeError as error:
            raise ConfigError(
                f"{self.adapter.name} sends the config to its workers as plain data ({error}); "
                "register wrappers and tools, and use their names"
            ) from error
        return decoded

    def with_absolute_paths(self) -> Self:
        """Return a copy whose files do not depend on the folder of the process that writes them."""
        record, metrics = (path and os.path.abspath(path) for path in (self.record, self.metrics))
        return replace(self, record=record, metrics=metrics)

    @property
    def schedule(self) -> HorizonSchedule | None:
        """The horizon as a schedule; None if there is no horizon."""
        return HorizonSchedule.parse(self.horizon)

    @property
    def all_wrappers(self) -> tuple[Any, ...]:
        """Wrappers and tools, innermost first."""
        return (*parse_wrappers(self.wrappers), *parse_wrappers(self.tools))

    @property
    def train_seeds(self) -> list[int]:
        """The training seeds."""
        return _seeds("seeds", self.seeds, 0)

    @property
    def held_out_seeds(self) -> list[int]:
        """The evaluation seeds."""
        return _seeds("eval_seeds", self.eval_seeds, FIRST_HELD_OUT_SEED)

    def task(self, seed: int, index: int = 0) -> Task:
        """Return the task of one seed."""
        env_kwargs = dict(self.env_kwargs)
        if self.eval_env_kwargs and seed in set(self.held_out_seeds):
            env_kwargs |= self.eval_env_kwargs
        return Task(
            self.env_id,
            seed,
            dict(self.options),
            self.all_wrappers,
            env_kwargs,
            index,
            execution="process" if self.execution == "process" else "declared",
        )

    def renderer(self, tokenizer: Tokenizer) -> Renderer:
        """Create the renderer of a tokenizer with its chat template."""
        return Renderer(tokenizer, self.history, template_kwargs=self.template_kwargs)

    def limits(
        self, step: int, *, max_context: int | None = None, max_response: int | None = None
    ) -> Limits:
        """Return the limits after `step` finished updates; the smaller `max_context` applies."""
        schedule = self.schedule
        caps = [cap for cap in (self.max_context, max_context) if cap is not None]
        return Limits(
            max_turns=schedule(step) if schedule is not None else None,
            max_context=min(caps, default=None),
            max_response=max_response,
            make_deadline=self.make_deadline,
            step_deadline=self.step_deadline,
            episode_deadline=self.episode_deadline,
            retries=self.retries,
            on_cut=self.on_cut,
        )

    @property
    def needs_groups(self) -> bool:
        """Whether the estimator compares several episodes of one seed."""
        return "groups" in estimators.get(self.advantage).needs

    @property
    def needs_values(self) -> bool:
        """Whether the estimator needs a critic's value for each turn."""
        return "values" in estimators.get(self.advantage).needs

    def compute_advantages(
        self,
        episodes: Sequence[Episode],
        gather: Gather | None = None,
        values: Sequence[Sequence[float]] | None = None,
    ) -> list[list[float]]:
        """Return one advantage per turn; `gather` collects statistics from all ranks."""
        critic = {"values": values} if self.needs_values else {}
        return advantages(
            episodes,
            self.advantage,
            gamma=self.gamma,
            gather=gather,
            **critic,
            **self.estimator_kwargs,
        )

    def rewriting_wrapper(self) -> str | None:
        """Return the wrapper that splits episodes into several sequences, if any.

        It may be one of the environment's own. A suffix that rewrites history shows only in play.
        """
        for item in json.loads(canonical_wrappers(spec(self.env_id).id, self.all_wrappers)):
            name, arguments = item if isinstance(item, list) else (item, {})
            appends = arguments.get("window") is None and arguments.get("template") is None
            if name in _REWRITES and not (name == "concat_chat" and appends):
                return str(name)
        return None

    def _check_estimator(self) -> None:
        supported = self.adapter.capabilities
        if self.needs_values and not supported.critic_values:
            raise ConfigError(
                f"the estimator {self.advantage!r} needs a critic, "
                f"which {self.adapter.name} does not offer; use 'rebn'"
            )
        if self.needs_groups and not supported.groups:
            raise ConfigError(
                f"the estimator {self.advantage!r} needs groups of episodes of one seed, "
                f"which {self.adapter.name} does not offer; use 'rebn'"
            )
        reserved = {"values", "gamma", "gather"} & set(self.estimator_kwargs)
        if reserved:
            raise ConfigError(
                f"remove {', '.join(sorted(reserved))} from estimator_kwargs: the trainer's critic "
                "returns values, and GemConfig(gamma=...) sets the discount"
            )
        arguments = {"gamma", "gather", *self.estimator_kwargs}
        check_estimator(self.advantage, arguments | ({"values"} if self.needs_values else set()))

    def _check_execution(self) -> None:
        if self.execution not in ("declared", "process", "ray"):
            raise ConfigError(
                f"execution must be 'declared', 'process' or 'ray', got {self.execution!r}"
            )
        whole_number_or_none("hosts", self.hosts, 1, none="2 hosts")
        if self.hosts is not None and self.execution != "ray":
            raise ConfigError(
                f"hosts={self.hosts} needs execution='ray', got execution={self.execution!r}"
            )

    def _check_history(self) -> None:
        if self.history not in ("append", "template"):
            raise ConfigError(f"history must be 'append' or 'template', got {self.history!r}")
        if self.history == "template" and not self.adapter.capabilities.several_sequences:
            raise ConfigError(
                "history='template' may split an episode into several sequences, but "
                f"{self.adapter.name} takes one per episode; use history='append'"
            )
        name = None if self.adapter.capabilities.several_sequences else self.rewriting_wrapper()
        if name is not None:
            raise ConfigError(
                f"the wrapper {name!r} {_REWRITES[name]}, which splits an episode into several "
                f"sequences, but {self.adapter.name} takes one per episode; remove the wrapper "
                "(the engine keeps the conversation) or use 'concat_chat_on_reset'"
            )


def _seeds(name: str, value: int | Sequence[int], start: int) -> list[int]:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return list(range(start, start + value))
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return [whole_number(f"each of {name}", seed, 0) for seed in value]
    raise ConfigError(f"{name} must be a number of seeds, or a list of seeds, got {value!r}")
