"""Evaluation suites: fixed environments and seeds, played by one command into one report."""
