"""Tool tasks after AgentGym's Weather, Movie, Academia, Sheet and TODO, over generated data."""
