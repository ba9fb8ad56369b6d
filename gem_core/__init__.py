"""gem: play multi-turn text environments with an LLM, token-exactly, for any RL trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gem_core._version import __version__
from gem_core.env.base import Env
from gem_core.env.registry import EnvSpec, list_envs, make, register, spec
from gem_core.env.wrapper import Wrapper
from gem_core.env.wrapper_stack import register_wrapper
from gem_core.errors import (
    ActionTypeError,
    BatchMismatchError,
    CheckError,
    ConfigError,
    ContractError,
    DeadlineError,
    EngineError,
    EnvDiedError,
    EnvError,
    GemError,
    MissingDependencyError,
    NotTrainableError,
    OptionError,
    PluginError,
    PolicyError,
    RecordError,
    RegistrationError,
    RenderError,
    ResetNeededError,
    UnknownNameError,
)
from gem_core.plugins.entry_points import load_entry_point
from gem_core.plugins.hookspecs import hookimpl
from gem_core.plugins.manager import register_plugin
from gem_core.policies.base import ChatPolicy, Player, Policy
from gem_core.policies.batching import BatchPolicy
from gem_core.policies.players import RandomPlayer
from gem_core.policies.scripted import ScriptedPlayer, ScriptedPolicy
from gem_core.records.file import RecordWriter, read_episodes
from gem_core.rollout.engine import Rollout, run_batch, run_episode, tasks_for
from gem_core.rollout.limits import Limits
from gem_core.rollout.renderer import Renderer
from gem_core.training.advantage import advantages, register_estimator
from gem_core.training.horizon import HorizonSchedule
from gem_core.training.metrics_file import MetricsFile
from gem_core.training.sequences import TokenSequence, token_sequences
from gem_core.training.warm_up import warm_up
from gem_core.types import (
    Context,
    Episode,
    Failure,
    FinishReason,
    Generation,
    Message,
    Sampling,
    StopReason,
    Task,
    Turn,
    TurnStatus,
)

if TYPE_CHECKING:
    from gem_check.checker import check_env
    from gem_envs.gymnasium.from_gymnasium import FromGymnasium
    from gem_envs.gymnasium.to_gymnasium import ToGymnasium as ToGymnasium  # needs an extra
    from gem_execution.vector.factory import make_vec

__all__ = [
    "ActionTypeError",
    "BatchMismatchError",
    "BatchPolicy",
    "ChatPolicy",
    "CheckError",
    "ConfigError",
    "Context",
    "ContractError",
    "DeadlineError",
    "EngineError",
    "Env",
    "EnvDiedError",
    "EnvError",
    "EnvSpec",
    "Episode",
    "Failure",
    "FinishReason",
    "FromGymnasium",
    "GemError",
    "Generation",
    "HorizonSchedule",
    "Limits",
    "Message",
    "MetricsFile",
    "MissingDependencyError",
    "NotTrainableError",
    "OptionError",
    "Player",
    "PluginError",
    "Policy",
    "PolicyError",
    "RandomPlayer",
    "RecordError",
    "RecordWriter",
    "RegistrationError",
    "RenderError",
    "Renderer",
    "ResetNeededError",
    "Rollout",
    "Sampling",
    "ScriptedPlayer",
    "ScriptedPolicy",
    "StopReason",
    "Task",
    "TokenSequence",
    "Turn",
    "TurnStatus",
    "UnknownNameError",
    "Wrapper",
    "__version__",
    "advantages",
    "check_env",
    "hookimpl",
    "list_envs",
    "make",
    "make_vec",
    "read_episodes",
    "register",
    "register_estimator",
    "register_plugin",
    "register_wrapper",
    "run_batch",
    "run_episode",
    "spec",
    "tasks_for",
    "token_sequences",
    "warm_up",
]


_OF_PLUGINS = {
    "FromGymnasium": "gem_envs.gymnasium.from_gymnasium:FromGymnasium",
    "ToGymnasium": "gem_envs.gymnasium.to_gymnasium:ToGymnasium",
    "check_env": "gem_check.checker:check_env",
    "make_vec": "gem_execution.vector.factory:make_vec",
}
"""Names that plugins of this distribution define; imported on first use."""


def __getattr__(name: str) -> Any:
    if name not in _OF_PLUGINS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return load_entry_point(_OF_PLUGINS[name], f"gem_core.{name}")
