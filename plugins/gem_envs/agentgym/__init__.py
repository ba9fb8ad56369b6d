"""AgentGym's worlds: BabyAI, SciWorld, TextCraft, TextWorldExpress."""
