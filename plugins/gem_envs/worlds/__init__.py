"""Text worlds after AgentGym's environments, with data that the seed generates."""
