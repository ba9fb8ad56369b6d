"""Agent: the file `--train.agent_func_path` points to. One of your own needs the same import, and what registers your games."""

from gem_openrlhf.rollout import GemAgentExecutor as AgentExecutor

__all__ = ["AgentExecutor"]
