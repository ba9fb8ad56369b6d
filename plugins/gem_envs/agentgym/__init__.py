"""The AgentGym environments that run offline: BabyAI, SciWorld, TextCraft, TextWorldExpress."""
