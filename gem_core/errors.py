"""Errors: one tree, each class also the built-in people would catch.

GemError
├── RegistrationError (ValueError)       an id, wrapper, tool or estimator cannot be registered
├── UnknownNameError (LookupError)       nothing is registered under that name
├── ConfigError (ValueError)             an argument or a combination of settings is refused
├── PluginError (RuntimeError)           a plugin cannot be loaded; names the plugin and how to block it
├── MissingDependencyError (ImportError) an optional part is not installed; names the extra
├── EnvError
│   ├── ActionTypeError (TypeError)      step() was given something that is not a string
│   ├── ResetNeededError (RuntimeError)  step() before reset(), or after the end of the episode
│   ├── OptionError (ValueError)         reset() was given an option, or a seed, it does not know
│   ├── ContractError (ValueError)       an environment returned something outside its contract
│   ├── DeadlineError (TimeoutError)     a step, a generation or an episode took too long
│   └── EnvDiedError (RuntimeError)      the process an environment lived in is gone
├── PolicyError (RuntimeError)           a policy failed, or returned something outside its contract
│   └── EngineError                      a trainer's generation engine failed: the run ends, not one episode
├── BatchMismatchError (RuntimeError)    what reaches a trainer's loss is not what was played
├── RenderError (ValueError)             a chat template cannot be used token-exactly
├── NotTrainableError (ValueError)       an episode without token ids was given to training code
├── RecordError (ValueError)             a record file cannot be read
└── CheckError (AssertionError)          an environment does not keep the contract

A message says what was given, what was expected, and what to do.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "ActionTypeError",
    "BatchMismatchError",
    "CheckError",
    "ConfigError",
    "ContractError",
    "DeadlineError",
    "EngineError",
    "EnvDiedError",
    "EnvError",
    "GemError",
    "MissingDependencyError",
    "NotTrainableError",
    "OptionError",
    "PluginError",
    "PolicyError",
    "RecordError",
    "RegistrationError",
    "RenderError",
    "ResetNeededError",
    "UnknownNameError",
]


class GemError(Exception):
    """The root of every error gem raises on purpose."""


class RegistrationError(GemError, ValueError):
    """Raised when a name cannot be registered: it is malformed, or taken."""


class UnknownNameError(GemError, LookupError):
    """Raised when nothing is registered under a name; suggests the nearest ones, or names all where they are few."""

    def __init__(self, kind: str, name: str, known: Iterable[str] = (), hint: str = "") -> None:
        super().__init__(kind, name, tuple(known), hint)
        self.kind, self.name, self.known, self.hint = self.args

    def __str__(self) -> str:
        near = self._near()
        text = f"no {self.kind} is registered as {self.name!r}"
        if near:
            text += "; did you mean " + " or ".join(repr(n) for n in near) + "?"
        else:
            text += (
                f"; there are: {', '.join(sorted(self.known))}."
                if 0 < len(self.known) <= 12
                else "."
            )
        return f"{text} {self.hint}".rstrip()

    def _near(self) -> list[str]:
        """Three names at most: those the text is part of, then those spelt like it, of its namespace where there is one."""
        text, namespace = self.name.strip().lower(), self.name.partition(":")[0] + ":"
        holding = sorted(n for n in self.known if text in n.lower()) if len(text) > 1 else []
        own = [n for n in self.known if n.startswith(namespace)] or self.known
        close = difflib.get_close_matches(self.name, own, n=3, cutoff=0.5)
        return list(dict.fromkeys([*holding, *close]))[:3]


class ConfigError(GemError, ValueError):
    """Raised when an argument, or a combination of settings, is refused."""


class PluginError(GemError, RuntimeError):
    """Raised when a plugin cannot be loaded or misspells a hook."""


class MissingDependencyError(GemError, ImportError):
    """Raised when an optional part is used without the packages it needs."""

    def __init__(self, what: str, extra: str, cause: str = "") -> None:
        super().__init__(what, extra, cause)
        self.what, self.extra, self.cause = what, extra, cause

    def __str__(self) -> str:
        text = f"{self.what} needs packages that are not installed; in a checkout of gem: pip install '.[{self.extra}]'"
        return f"{text}. Missing: {self.cause}" if self.cause else text


class EnvError(GemError):
    """The root of what goes wrong in or around an environment."""


class ActionTypeError(EnvError, TypeError):
    """Raised when an action is not a string."""


class ResetNeededError(EnvError, RuntimeError):
    """Raised when step() is called before reset() or after the end of the episode."""


class OptionError(EnvError, ValueError):
    """Raised when reset() is given a seed or an option the environment does not take."""


class ContractError(EnvError, ValueError):
    """Raised when an environment returns something outside its contract."""


class DeadlineError(EnvError, TimeoutError):
    """Raised when a step, a generation or an episode took longer than it may."""


class EnvDiedError(EnvError, RuntimeError):
    """Raised when the process an environment lived in is gone."""


class PolicyError(GemError, RuntimeError):
    """Raised when a policy fails or returns something outside its contract."""


class EngineError(PolicyError):
    """Raised when a trainer's generation engine fails. It ends the run: continuing would train on empty batches."""


class BatchMismatchError(GemError, RuntimeError):
    """Raised when what reaches a trainer's loss is not what was played: ids, a mask or whole sequences changed on the way."""


class RenderError(GemError, ValueError):
    """Raised when a chat template or tokenizer cannot be used token-exactly."""


class NotTrainableError(GemError, ValueError):
    """Raised when an episode that was played without token ids reaches training code."""


class RecordError(GemError, ValueError):
    """Raised when a record file cannot be read."""


class CheckError(GemError, AssertionError):
    """Raised when a check finds that an environment does not keep the contract."""
