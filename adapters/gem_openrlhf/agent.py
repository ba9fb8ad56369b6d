"""Agent: the file `--train.agent_func_path` names. One of your own needs the same import, and registers your environments."""

from gem_openrlhf.rollout import GemAgentExecutor as AgentExecutor

__all__ = ["AgentExecutor"]
