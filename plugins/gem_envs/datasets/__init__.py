"""Datasets: questions from files, the Hugging Face Hub and generators, with graders."""
