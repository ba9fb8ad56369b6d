"""Token policy: sends token ids to `/v1/completions` and receives the sampled ids and logprobs.

vLLM returns both, so the episodes can be trained on.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from gem_core.arguments import short
from gem_core.errors import PolicyError
from gem_core.types import FinishReason, Generation, Sampling
from gem_eval.models.openai.server import Server, ServerPolicy, first_choice

__all__ = ["OpenAIPolicy"]


class OpenAIPolicy(ServerPolicy):
    """Sample token ids from an OpenAI-compatible server that returns them, such as vLLM.

    By default vLLM returns logprobs from *before* temperature, top-p and top-k
    (`--logprobs-mode raw_logprobs`). They equal the sampling logprobs only at temperature 1 without
    top-p and top-k. With other settings the policy drops them with a warning, unless the server
    runs with `--logprobs-mode processed_logprobs` and `processed_logprobs` is True.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str | None = None,
        api_key_env: str | None = None,
        processed_logprobs: bool = False,
        stop_ids: Sequence[int] = (),
        timeout: float = 600.0,
        retries: int = 5,
        max_connections: int = 256,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Check the settings; the connection opens with the first request.

        `api_key_env`: the environment variable that holds the key. `stop_ids`: tokens that end a
        turn, besides the server's own. `extra`: extra fields of each request.
        """
        self._server = Server(
            base_url, model, api_key, api_key_env, timeout, retries, max_connections, extra
        )
        self.processed_logprobs = processed_logprobs
        self.stop_ids = list(stop_ids)
        self.weight_version: int | None = None
        """Version of the server's weights. The code that updates the weights sets it."""

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        """Sample from the server and return exactly the ids that it sampled."""
        prompt = list(prompt_ids)
        body: dict[str, Any] = {
            "prompt": prompt,
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k or -1,
            # override the server's defaults, which it reads from the model's generation config
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "logprobs": 0,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
        }
        if self.stop_ids:
            body["stop_token_ids"] = self.stop_ids
        if sampling.stop:
            body |= {"stop": list(sampling.stop), "include_stop_str_in_output": True}
        if sampling.seed is not None:
            body["seed"] = sampling.seed
        version = self.weight_version
        choice = first_choice(await self._server.post("completions", body), self._server.url)
        ids = _sampled_ids(choice, prompt, self._server.url)
        logprobs = None
        if self._trusts_logprobs(sampling):
            logprobs = _sampled_logprobs(choice, ids, self._server.url)
        versions = None
        if version is not None:
            after = self.weight_version
            versions = (version, version if after is None else after)
        finish = FinishReason.EMPTY
        if ids:
            cut = choice.get("finish_reason") == "length"
            finish = FinishReason.LENGTH if cut else FinishReason.STOP
        return Generation(tuple(ids), logprobs, finish, versions=versions)

    def _trusts_logprobs(self, sampling: Sampling) -> bool:
        plain = sampling.temperature == 1.0 and sampling.top_p == 1.0 and sampling.top_k == 0
        if not (plain or self.processed_logprobs):
            warnings.warn(
                f"dropping logprobs at temperature={sampling.temperature}, "
                f"top_p={sampling.top_p}, top_k={sampling.top_k}: "
                "by default vLLM returns logprobs from before temperature, top-p and top-k. "
                "Start it with --logprobs-mode processed_logprobs and pass "
                "processed_logprobs=True, or sample at temperature 1 without top-p and top-k.",
                stacklevel=3,
            )
        return plain or self.processed_logprobs


def _sampled_ids(choice: Mapping[str, Any], prompt: list[int], url: str) -> list[int]:
    server_prompt = choice.get("prompt_token_ids")
    if server_prompt is not None and server_prompt != prompt:
        raise PolicyError(
            f"{url} changed the prompt: sent {len(prompt)} ids, it sampled after "
            f"{len(server_prompt)} other ids. Its samples cannot be trained on; "
            "check its tokenizer and its length limit"
        )
    ids = choice.get("token_ids")
    if ids is None:
        tokens = (choice.get("logprobs") or {}).get("tokens") or []
        if all(
            isinstance(t, str)
            and t.removeprefix("token_id:").isdigit()
            and t.startswith("token_id:")
            for t in tokens
        ):
            ids = [int(t.removeprefix("token_id:")) for t in tokens]
    if (
        not isinstance(ids, list)
        or not all(isinstance(i, int) for i in ids)
        or (not ids and choice.get("text"))
    ):
        raise PolicyError(
            f"{url} did not return the sampled token ids. "
            "vLLM returns them for return_token_ids; for other servers "
            "use OpenAIChatPolicy, whose episodes cannot be trained on"
        )
    return ids


def _sampled_logprobs(
    choice: Mapping[str, Any], ids: list[int], url: str
) -> tuple[float, ...] | None:
    logprobs = (choice.get("logprobs") or {}).get("token_logprobs")
    if logprobs is None:
        return None if ids else ()
    if len(logprobs) != len(ids) or not all(isinstance(p, (int, float)) for p in logprobs):
        raise PolicyError(
            f"{url} returned {len(ids)} token ids and the logprobs {short(logprobs)}; "
            "expected one logprob per id"
        )
    return tuple(float(p) for p in logprobs)
