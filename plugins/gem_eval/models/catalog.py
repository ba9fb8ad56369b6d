"""Policies by name: baseline players, local models, and models on a server."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from gem_core.env.base import Env
from gem_core.errors import ConfigError, MissingDependencyError
from gem_core.policies.base import ChatPolicy, Player, Policy
from gem_core.policies.models import model_path
from gem_core.policies.players import PLAYERS, expert_of, player_named
from gem_core.rollout.renderer import Renderer

__all__ = ["NamedPolicy", "check_tokenizer", "policy_named", "tokenizer_named", "unplayable"]

_OF_A_MODEL = re.compile(
    r"(adapter_|generation_)?config\.json|(added_)?token.*\.json|special_tokens_map\.json|vocab\.json"
    r"|.+\.(jinja|model|safetensors|bin|gguf)"
)
"""Names of the files that decide what a model answers."""


@dataclass(frozen=True, slots=True)
class NamedPolicy:
    """A policy with its renderer and context length."""

    policy: Policy | ChatPolicy | Player
    kind: str
    """`player`, `chat` (a server's text), `tokens` (a server's ids), or `local` and a hash."""
    renderer: Renderer | None = None
    max_context: int | None = None


def policy_named(
    model: str,
    *,
    server: str = "",
    api_key_env: str | None = None,
    tokenizer: str = "",
    timeout: float = 120.0,
    retries: int = 5,
    max_connections: int = 64,
    max_tokens_field: str = "max_tokens",
    return_reasoning: bool = False,
    request: Mapping[str, Any] | None = None,
    history: Literal["append", "template"] = "append",
    template_kwargs: Mapping[str, Any] | None = None,
) -> NamedPolicy:
    """Create the policy for a model name.

    `random` and `expert` are baseline players. With `server`, `model` is its name on the server;
    with `tokenizer`, gem and the server exchange token ids, as vLLM does. Otherwise `model` is
    `tiny`, `smollm2`, a model folder or a hub name. `history` and `template_kwargs` are those of
    `GemConfig`; they need a tokenizer.
    """
    if template_kwargs or history != "append":
        check_tokenizer([model], server, tokenizer)
    make_renderer = partial(Renderer, mode=history, template_kwargs=template_kwargs)
    if model in PLAYERS:
        if server or tokenizer:
            raise ConfigError(
                f"{model!r} is a baseline player; remove the server and the tokenizer"
            )
        return NamedPolicy(player_named(model), "player")
    if not server:
        if tokenizer or api_key_env or request or return_reasoning:
            raise ConfigError(
                "a tokenizer, an API key, request fields and returned reasoning need a server; "
                "pass its address, such as http://localhost:8000/v1"
            )
        return _local(model, make_renderer)
    shared: dict[str, Any] = {"api_key_env": api_key_env, "timeout": timeout, "retries": retries}
    shared |= {"max_connections": max_connections, "extra": request}
    if not tokenizer:
        from gem_eval.models.openai import OpenAIChatPolicy

        shared |= {"max_tokens_field": max_tokens_field, "return_reasoning": return_reasoning}
        kind = "chat with returned reasoning" if return_reasoning else "chat"
        return NamedPolicy(OpenAIChatPolicy(server, model, **shared), kind)
    if return_reasoning:
        raise ConfigError(
            "returned reasoning needs a chat server; with a tokenizer, the prompt has the thinking"
        )
    from gem_eval.models.openai import OpenAIPolicy

    loaded = tokenizer_named(tokenizer)
    renderer = make_renderer(loaded)
    ends = {loaded.eos_token_id, renderer.turn_end} - {None}
    policy = OpenAIPolicy(server, model, stop_ids=sorted(ends), **shared)
    return NamedPolicy(policy, "tokens", renderer)


def unplayable(name: str, env: Env) -> str:
    """Return why a baseline player cannot play an environment; empty if it can."""
    if name == "random" and not env.unwrapped.plays_at_random:
        return f"{type(env.unwrapped).__name__} has no sample_action()"
    if name == "expert" and expert_of(env) is None:
        return f"{type(env.unwrapped).__name__} has no expert()"
    return ""


def check_tokenizer(models: Iterable[str], server: str, tokenizer: str) -> None:
    """Raise `ConfigError` if no model renders its prompts here, with a chat template."""
    if set(models) <= set(PLAYERS) or (server and not tokenizer):
        raise ConfigError(
            "the history mode and arguments of the chat template need a tokenizer; "
            "use a local model, or a tokenizer with the server"
        )


def tokenizer_named(name: str) -> Any:
    """Load the tokenizer of a model: `tiny`, `smollm2`, a folder, or a hub name."""
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise MissingDependencyError("a tokenizer", "transformers", str(error)) from error
    try:
        return AutoTokenizer.from_pretrained(model_path(name))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot load the tokenizer {name!r}: {_first_line(error)}") from error


def _local(model: str, make_renderer: Callable[[Any], Renderer]) -> NamedPolicy:
    try:
        import torch
    except ImportError as error:
        raise MissingDependencyError("a local model", "transformers", str(error)) from error
    from gem_core.policies.tiny import load_folder
    from gem_core.policies.transformers_policy import TransformersPolicy

    device = "cuda" if model != "tiny" and torch.cuda.is_available() else "cpu"
    try:
        loaded, tokenizer = load_folder(model_path(model), "a local model", device)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cannot load the local model {model!r}: {_first_line(error)}. Use 'tiny', 'smollm2', "
            "'random', 'expert' or a model folder; pass a server's address for a model on a server"
        ) from error
    context = getattr(loaded.config, "max_position_embeddings", None)
    kind = f"local {_fingerprint(Path(model_path(model)))}"
    policy = TransformersPolicy(loaded, tokenizer)
    return NamedPolicy(policy, kind, make_renderer(tokenizer), context)


def _fingerprint(folder: Path) -> str:
    """Hash parts of every file of a model: training changes nearly all of its weights."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*")) if folder.is_dir() else ():
        if path.is_file() and _OF_A_MODEL.fullmatch(path.name):
            size = path.stat().st_size
            digest.update(f"{path.name} {size}".encode())
            with path.open("rb") as file:
                for start in range(0, size, max(size // 64, 4096)):
                    file.seek(start)
                    digest.update(file.read(4096))
    return digest.hexdigest()[:12]


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0][:200].rstrip(".")
