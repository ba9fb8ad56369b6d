"""Named: the policy that a command line names, a player, a local model or a model behind a server, ready to play."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gem_core.errors import ConfigError, MissingDependencyError
from gem_core.policies.base import ChatPolicy, Player, Policy
from gem_core.policies.models import model_path
from gem_core.policies.players import PLAYERS, player_named
from gem_core.rollout.renderer import Renderer

__all__ = ["NamedPolicy", "policy_named", "tokenizer_named"]


@dataclass(frozen=True, slots=True)
class NamedPolicy:
    """A policy and what playing with it needs."""

    policy: Policy | ChatPolicy | Player
    kind: str
    """`player`, `local` (a transformers model in this process), `chat` (text from a server) or `tokens` (ids from one)."""
    renderer: Renderer | None = None
    max_context: int | None = None


def policy_named(
    model: str,
    *,
    server: str = "",
    api_key_env: str | None = None,
    tokenizer: str = "",
    timeout: float = 600.0,
    retries: int = 5,
    max_connections: int = 64,
    max_tokens_field: str = "max_tokens",
    request: Mapping[str, Any] | None = None,
) -> NamedPolicy:
    """`random` and `expert` are players. With `server`, `model` is the name the server knows it by; with `tokenizer`, that server
    is sent token ids and gives them back, as vLLM does. Else `model` is `tiny`, `smollm2`, a model folder or a hub's name."""
    if model in PLAYERS:
        if server or tokenizer:
            raise ConfigError(f"{model!r} is a player and needs neither a server nor a tokenizer")
        return NamedPolicy(player_named(model), "player")
    if not server:
        if tokenizer or api_key_env or request:
            raise ConfigError(
                "a tokenizer, a key and request fields go with a server; give its address, as in http://localhost:8000/v1"
            )
        return _local(model)
    shared: dict[str, Any] = {"api_key_env": api_key_env, "timeout": timeout, "retries": retries}
    shared |= {"max_connections": max_connections, "extra": request}
    if not tokenizer:
        from gem_eval.models.openai import OpenAIChatPolicy

        return NamedPolicy(
            OpenAIChatPolicy(server, model, max_tokens_field=max_tokens_field, **shared), "chat"
        )
    from gem_eval.models.openai import OpenAIPolicy

    known = tokenizer_named(tokenizer)
    ends = [known.eos_token_id] if known.eos_token_id is not None else []
    return NamedPolicy(
        OpenAIPolicy(server, model, stop_ids=ends, **shared), "tokens", Renderer(known)
    )


def tokenizer_named(name: str) -> Any:
    """A tokenizer by the name of its model: `tiny`, `smollm2`, a folder, or a hub's name."""
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise MissingDependencyError("a tokenizer", "transformers", str(error)) from error
    try:
        return AutoTokenizer.from_pretrained(model_path(name))
    except (OSError, ValueError) as error:
        raise ConfigError(f"there is no tokenizer {name!r}: {_first_line(error)}") from error


def _local(model: str) -> NamedPolicy:
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
            f"there is no local model {model!r}: {_first_line(error)}. Give 'tiny', 'smollm2', 'random', 'expert', a model "
            "folder, or a server's address for a model that runs elsewhere"
        ) from error
    context = getattr(loaded.config, "max_position_embeddings", None)
    return NamedPolicy(TransformersPolicy(loaded, tokenizer), "local", Renderer(tokenizer), context)


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0][:200].rstrip(".")
