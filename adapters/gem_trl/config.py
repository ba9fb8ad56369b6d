"""Config: what a TRL user says about an environment, and what TRL settings go with it."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Literal

from gem_core.advantage import check_estimator, estimators
from gem_core.errors import ConfigError, MissingDependencyError
from gem_core.metrics import BatchMetrics
from gem_core.registry import canonical_wrappers, parse_wrappers, spec
from gem_core.schedule import HorizonSchedule
from gem_core.types import Episode, Task
from gem_core.version import in_range

if TYPE_CHECKING:
    from gem_trl.rollout import GemRollout

__all__ = ["GemSpec", "check_trainer", "check_version"]

_REWRITES = {
    "concat": "rewrites the context every turn",
    "concat_with_action": "rewrites the context every turn",
    "concat_chat": "rewrites the context when its window moves or a suffix goes",
}
_ASSUMES_ONE_NUMBER_PER_ROW = ("GMPOTrainer",)


@dataclass
class GemSpec:
    """An environment for TRL: gives `train_dataset`, `rollout_func` and `reward_funcs` to a GRPOTrainer."""

    env_id: str
    """An environment id, or a mixture such as `2*game:A + 1*game:B`."""
    seeds: int | Sequence[int] = 1024
    """The starts to train on: so many, or these. Each becomes one row, which TRL plays `num_generations` times."""
    eval_seeds: int | Sequence[int] = 0
    """The starts to evaluate on; a number counts from one million up. One that is trained on is refused."""
    wrappers: Sequence[Any] | str = ()
    """By name, innermost first."""
    tools: Sequence[Any] | str = ()
    """By name, put around the wrappers."""
    options: Mapping[str, Any] = field(default_factory=dict)
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    advantage: str = "rebn"
    """Any registered estimator that needs no critic. Only a trainer with gem's advantages uses it."""
    gamma: float = 1.0
    estimator_kwargs: Mapping[str, Any] = field(default_factory=dict)
    max_turn_tokens: int | None = None
    """The cap on one turn; None is TRL's `max_completion_length`, which also caps the whole row behind its prompt."""
    max_context: int | None = None
    """Tokens of a prompt and its generation; None is what the model or vLLM can take."""
    horizon: HorizonSchedule | int | str | Sequence[int] | Mapping[str, Any] | None = None
    """Turns of an episode, fixed or growing with TRL's `global_step`."""
    on_cut: Literal["step", "mask", "end"] = "step"
    step_deadline: float | None = None
    episode_deadline: float | None = None
    retries: int = 0
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """For the chat template, as in {"enable_thinking": False}."""
    batch_wait: float = 0.05
    """Seconds a generation batch waits for episodes whose environment is still busy."""
    lockstep: bool | None = None
    """Whether all ranks generate together, with equal calls and sizes; None: wherever the engine is collective."""
    record: str | None = None
    """Where to append every episode, as JSON lines; `{rank}` stands for the process."""

    def __post_init__(self) -> None:
        self.horizon = HorizonSchedule.parse(self.horizon)
        known = spec(self.env_id)
        entry = estimators.get(self.advantage)
        if "values" in entry.needs:
            raise ConfigError(
                f"the estimator {self.advantage!r} needs a critic, which GRPOTrainer does not have; use 'rebn', or train with oat"
            )
        if not 0.0 <= self.gamma <= 1.0:
            raise ConfigError(f"gamma must be between 0 and 1; given: {self.gamma!r}")
        check_estimator(self.advantage, {"gamma": self.gamma, "gather": None, **self.estimator_kwargs})
        self._refuse_rewriting(known.id)
        overlap = set(_seeds(self.seeds, 0)) & set(_seeds(self.eval_seeds, 1_000_000))
        if overlap:
            raise ConfigError(
                f"{len(overlap)} of the seeds to evaluate on are trained on, among them {min(overlap)}; keep them apart"
            )

    @property
    def all_wrappers(self) -> tuple[Any, ...]:
        """Wrappers and tools, innermost first."""
        return (*parse_wrappers(self.wrappers), *parse_wrappers(self.tools))

    def _refuse_rewriting(self, id: str) -> None:
        """An environment's own wrappers count too; a suffix that rewrites the past is only seen when it is played."""
        for item in json.loads(canonical_wrappers(id, self.all_wrappers)):
            name, arguments = item if isinstance(item, list) else (item, {})
            if name in _REWRITES and not (name == "concat_chat" and is_append_only(arguments)):
                raise ConfigError(
                    f"the wrapper {name!r} {_REWRITES[name]}, so that an episode becomes several rows, and GRPOTrainer takes one "
                    "row per prompt; leave it out (the engine keeps the whole conversation), or use 'concat_chat_on_reset'"
                )

    @cached_property
    def train_dataset(self) -> Any:
        """One row per seed, which rides inside the prompt, since TRL passes nothing else on to a rollout function."""
        return self._dataset(_seeds(self.seeds, 0))

    @cached_property
    def eval_dataset(self) -> Any:
        """As `train_dataset`, for `eval_seeds`; None where there are none."""
        seeds = _seeds(self.eval_seeds, 1_000_000)
        return self._dataset(seeds) if seeds else None

    @cached_property
    def rollout_func(self) -> GemRollout:
        """What GRPOTrainer calls for completions."""
        from gem_trl.rollout import GemRollout

        return GemRollout(self)

    @property
    def reward_funcs(self) -> list[Any]:
        """The return of each episode, None where it is void: TRL leaves those out of its groups."""
        return [episode_return]

    def arguments(self) -> dict[str, Any]:
        """The three of them, and the evaluation set where there is one, as keyword arguments of a trainer."""
        given = {"train_dataset": self.train_dataset, "rollout_func": self.rollout_func, "reward_funcs": self.reward_funcs}
        if self.eval_dataset is not None:
            given["eval_dataset"] = self.eval_dataset
        return given

    def task(self, prompt: Any, index: int) -> Task:
        """The task a prompt row carries."""
        carried = prompt[-1].get("gem") if isinstance(prompt, list) and prompt and isinstance(prompt[-1], dict) else None
        if not carried or "seed" not in carried:
            raise ConfigError(
                "a prompt carries no gem task; train on spec.train_dataset, or give each prompt's last message a key "
                f"'gem': {{'seed': 7}}. Given: {str(prompt)[:120]}"
            )
        return Task(self.env_id, int(carried["seed"]), dict(self.options), self.all_wrappers, dict(self.env_kwargs), index)

    def _dataset(self, seeds: Sequence[int]) -> Any:
        try:
            from datasets import Dataset
        except ImportError as error:
            raise MissingDependencyError("a TRL data set", "trl", str(error)) from error
        rows = [{"prompt": [{"role": "user", "content": f"{self.env_id} #{seed}", "gem": {"seed": seed}}]} for seed in seeds]
        return Dataset.from_list(rows)


def is_append_only(arguments: Mapping[str, Any]) -> bool:
    """Whether a `concat_chat` with these arguments leaves the past alone (an environment's suffix may still rewrite it)."""
    return arguments.get("window") is None and arguments.get("template") is None


def episode_return(
    prompts: Any, completions: Any, gem_episode: Sequence[Episode], log_metric: Any = None, **_: Any
) -> list[float | None]:
    """TRL's reward function: the undiscounted return of each episode, and how all ranks' episodes went in TRL's metrics."""
    if log_metric is not None:
        from accelerate.utils import gather_object

        # summed up here, because TRL 1.10 gathers each name a rank happens to log, and hangs where ranks log different ones
        for name, value in BatchMetrics.total(gather_object([BatchMetrics.of(gem_episode)])).means().items():
            log_metric(f"gem/{name}", value)
    return [episode.total_reward for episode in gem_episode]


def check_version() -> None:
    """Refuses a TRL outside the range this adapter was tested with."""
    from gem_trl import ADAPTER

    installed = version("trl")
    if not in_range(installed, ADAPTER.versions):
        raise ConfigError(
            f"gem_trl fits TRL {ADAPTER.versions}; installed is {installed}. Install one of those, or an older or newer gem"
        )


def check_trainer(trainer: Any, given: GemSpec, per_turn: bool) -> None:
    """Refuses settings that would break what gem promises, with the remedy. `per_turn`: whether gem's advantages are used."""
    check_version()
    args = trainer.args
    refusals = [
        (
            args.mask_truncated_completions,
            "mask_truncated_completions=True drops a whole episode because its last turn was cut; set it to False, and "
            "GemSpec(on_cut='mask') to leave only the cut turn out",
        ),
        (
            bool(getattr(trainer, "tools", None)) or getattr(trainer, "environments", None) is not None,
            "GRPOTrainer(tools=...) and environment_factory make TRL ignore the mask of a rollout function; leave them out, "
            "and name tools in GemSpec(tools=...)",
        ),
        (
            per_turn and bool(getattr(args, "use_liger_kernel", False)),
            "use_liger_kernel=True takes one advantage per row; set it to False for per-turn advantages",
        ),
        (
            per_turn and any(base.__name__ in _ASSUMES_ONE_NUMBER_PER_ROW for base in type(trainer).__mro__),
            f"{type(trainer).__name__} assumes one advantage per row; use GRPOTrainer for per-turn advantages",
        ),
        (
            not _loss_reads_mask(type(trainer)),
            f"the loss of {type(trainer).__name__} does not read `tool_mask`, so that it would train on the environment's words; "
            "use TRL's own GRPOTrainer, or a version of the patch that reads it",
        ),
        (
            given.max_turn_tokens is not None and given.max_turn_tokens > args.max_completion_length,
            f"max_turn_tokens={given.max_turn_tokens} is over TRL's max_completion_length={args.max_completion_length}, which "
            "caps the whole row behind its prompt; raise the latter",
        ),
    ]
    for refused, why in refusals:
        if refused:
            raise ConfigError(why)


def _seeds(given: int | Sequence[int], start: int) -> list[int]:
    if isinstance(given, bool) or (isinstance(given, int) and given < 0):
        raise ConfigError(f"seeds is a number of starts, or a list of them; given: {given!r}")
    return list(range(start, start + given)) if isinstance(given, int) else [int(s) for s in given]


def _loss_reads_mask(trainer_class: type) -> bool:
    """Whether the loss, or one that it builds on, reads the mask. Code without a source is given the benefit of the doubt:
    what reaches it is checked with every batch."""
    for base in trainer_class.__mro__:
        if "_compute_loss" in vars(base):
            try:
                source = inspect.getsource(vars(base)["_compute_loss"])
            except (OSError, TypeError):
                return True
            if "tool_mask" in source:
                return True
            if "super()" not in source:
                return False
    return False
