"""gem: plays multi-turn text environments with a language model, token-exactly, for any RL trainer."""

from __future__ import annotations

from gem_core.advantage import Moments, advantages, estimators, register_estimator
from gem_core.env import Env, EnvState
from gem_core.errors import GemError
from gem_core.hookspecs import hookimpl
from gem_core.plugins import register_plugin
from gem_core.policy import BatchPolicy, ChatPolicy, Player, Policy, RandomPlayer, ScriptedPlayer, ScriptedPolicy
from gem_core.registry import EnvSpec, list_envs, make, register, register_wrapper, spec
from gem_core.render import Conversation, Renderer
from gem_core.rollout import Interrupted, Limits, Rollout, run_batch, run_episode, tasks_for
from gem_core.schedule import HorizonSchedule
from gem_core.tokens import TokenView, channel_rewards, discounted_returns, placeholder, token_views
from gem_core.types import Context, Episode, Failure, Finish, Generation, Message, Sampling, Status, Stop, Task, Turn
from gem_core.version import __version__
from gem_core.wrapper import Wrapper

__all__ = [
    "BatchPolicy",
    "ChatPolicy",
    "Context",
    "Conversation",
    "Env",
    "EnvSpec",
    "EnvState",
    "Episode",
    "Failure",
    "Finish",
    "GemError",
    "Generation",
    "HorizonSchedule",
    "Interrupted",
    "Limits",
    "Message",
    "Moments",
    "Player",
    "Policy",
    "RandomPlayer",
    "Renderer",
    "Rollout",
    "Sampling",
    "ScriptedPlayer",
    "ScriptedPolicy",
    "Status",
    "Stop",
    "Task",
    "TokenView",
    "Turn",
    "Wrapper",
    "__version__",
    "advantages",
    "channel_rewards",
    "discounted_returns",
    "estimators",
    "hookimpl",
    "list_envs",
    "make",
    "placeholder",
    "register",
    "register_estimator",
    "register_plugin",
    "register_wrapper",
    "run_batch",
    "run_episode",
    "spec",
    "tasks_for",
    "token_views",
]
