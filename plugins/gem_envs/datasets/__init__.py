"""Data sets: questions from files, hubs and generators, with graders."""
