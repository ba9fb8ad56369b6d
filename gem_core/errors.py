"""Errors: one tree; each class also derives from the matching built-in exception.

GemError
├── RegistrationError (ValueError)       an id, wrapper, tool or estimator cannot be registered
├── UnknownNameError (LookupError)       no such name is registered
├── ConfigError (ValueError)             an argument or a combination of settings is not supported
├── PluginError (RuntimeError)           a plugin cannot be loaded; names it and how to block it
├── MissingDependencyError (ImportError) optional packages are not installed; names the extra
├── EnvError
│   ├── ActionTypeError (TypeError)      an action is not a string
│   ├── ResetNeededError (RuntimeError)  step() before reset() or after the end of the episode
│   ├── OptionError (ValueError)         reset() does not accept an option or the seed
│   ├── ContractError (ValueError)       an environment violated the `Env` contract
│   ├── DeadlineError (TimeoutError)     a step, a generation or an episode took too long
│   └── EnvDiedError (RuntimeError)      the process of an environment died
├── PolicyError (RuntimeError)           a policy failed or violated its contract
│   └── EngineError                      a trainer's generation engine failed; ends the whole run
├── BatchMismatchError (RuntimeError)    a trainer's batch differs from the episodes played
├── RenderError (ValueError)             a chat template cannot be used token-exactly
├── NotTrainableError (ValueError)       training code received an episode without token ids
├── RecordError (ValueError)             a record file cannot be read or written
└── CheckError (AssertionError)          `check_env` found contract violations

A message names the value received, what was expected, and what to do.
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
    """Base class of all errors that gem raises on purpose."""


class RegistrationError(GemError, ValueError):
    """Raised when a name cannot be registered because it is malformed or taken."""


class UnknownNameError(GemError, LookupError):
    """Raised when no such name is registered. Suggests similar names, or lists all if few."""

    def __init__(self, kind: str, name: str, known: Iterable[str] = (), hint: str = "") -> None:
        super().__init__(kind, name, tuple(known), hint)
        self.kind, self.name, self.known, self.hint = self.args

    def __str__(self) -> str:
        near = self._near()
        text = f"no {self.kind} is registered as {self.name!r}"
        if near:
            text += "; did you mean " + " or ".join(repr(n) for n in near) + "?"
        else:
            listed = 0 < len(self.known) <= 12
            text += f"; known names: {', '.join(sorted(self.known))}." if listed else "."
        return f"{text} {self.hint}".rstrip()

    def _near(self) -> list[str]:
        """Return up to three names that contain the text, or are similar to it."""
        text, namespace = self.name.strip().lower(), self.name.partition(":")[0] + ":"
        containing = sorted(n for n in self.known if text in n.lower()) if len(text) > 1 else []
        same_namespace = [n for n in self.known if n.startswith(namespace)] or self.known
        close = difflib.get_close_matches(self.name, same_namespace, n=3, cutoff=0.5)
        return list(dict.fromkeys([*containing, *close]))[:3]


class ConfigError(GemError, ValueError):
    """Raised when an argument or a combination of settings is not supported."""


class PluginError(GemError, RuntimeError):
    """Raised when a plugin cannot be loaded or misspells a hook."""


class MissingDependencyError(GemError, ImportError):
    """Raised when optional packages are not installed."""

    def __init__(self, what: str, extra: str, cause: str = "") -> None:
        super().__init__(what, extra, cause)
        self.what, self.extra, self.cause = what, extra, cause

    def __str__(self) -> str:
        install = f"in a checkout of gem, run: pip install '.[{self.extra}]'"
        text = f"{self.what} needs packages that are not installed; {install}"
        return f"{text}. Missing: {self.cause}" if self.cause else text


class EnvError(GemError):
    """Base class of errors in or around an environment."""


class ActionTypeError(EnvError, TypeError):
    """Raised when an action is not a string."""


class ResetNeededError(EnvError, RuntimeError):
    """Raised when step() is called before reset() or after the end of the episode."""


class OptionError(EnvError, ValueError):
    """Raised when reset() does not accept an option or the seed."""


class ContractError(EnvError, ValueError):
    """Raised when an environment violates the `Env` contract."""


class DeadlineError(EnvError, TimeoutError):
    """Raised when a step, a generation or an episode exceeds its time limit."""


class EnvDiedError(EnvError, RuntimeError):
    """Raised when the process of an environment died."""


class PolicyError(GemError, RuntimeError):
    """Raised when a policy fails or violates its contract."""


class EngineError(PolicyError):
    """Raised when a trainer's generation engine fails, which ends the run."""


class BatchMismatchError(GemError, RuntimeError):
    """Raised when a trainer's batch differs from the episodes: in ids, loss mask or sequences."""


class RenderError(GemError, ValueError):
    """Raised when a chat template or tokenizer cannot be used token-exactly."""


class NotTrainableError(GemError, ValueError):
    """Raised when training code receives an episode without token ids."""


class RecordError(GemError, ValueError):
    """Raised when a record file cannot be read or written."""


class CheckError(GemError, AssertionError):
    """Raised when `check_env` finds contract violations."""
