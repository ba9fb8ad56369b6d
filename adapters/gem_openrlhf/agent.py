"""Agent: the file that OpenRLHF loads in every vLLM engine (`--train.agent_func_path`).

To train on your own environments, copy this file and import the module that registers them.
"""

from gem_openrlhf.rollout import GemAgentExecutor as AgentExecutor

__all__ = ["AgentExecutor"]
