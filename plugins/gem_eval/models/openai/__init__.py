"""Policies that sample from OpenAI-compatible servers.

`OpenAIPolicy` exchanges token ids with a server, so its episodes can be trained on.
`OpenAIChatPolicy` exchanges messages, with function calling if the environment has tools of the
style `native`; its episodes cannot be trained on.
"""

from __future__ import annotations

from gem_eval.models.openai.chat import OpenAIChatPolicy
from gem_eval.models.openai.tokens import OpenAIPolicy

__all__ = ["OpenAIChatPolicy", "OpenAIPolicy"]
