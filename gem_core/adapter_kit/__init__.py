"""Adapter kit: what the adapters to the trainers share."""
