"""`gem-rl new NAME`: write a plugin project with one environment, a test and a recipe."""

from __future__ import annotations

import argparse
from pathlib import Path

from gem_core.cli.terminal import say
from gem_new.project import Project

__all__ = ["EXAMPLES", "SUMMARY", "add_arguments", "run"]

SUMMARY = "write a project for an environment of your own"
EXAMPLES = ("gem-rl new number-maze", "gem-rl new number-maze --out projects/maze")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the name and the folder."""
    parser.add_argument("name", help="the name of the project, for example number-maze")
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="the folder to write (default: NAME)"
    )


def run(args: argparse.Namespace) -> int:
    """Write the files and print what to do next."""
    project = Project(args.name)
    folder = args.out if args.out is not None else Path(args.name)
    for path in project.write(folder):
        say(f"wrote {path}")
    say(
        f"\nNext:\n"
        f"  cd {folder}\n"
        f"  gem-rl check {project.package}/env.py:{project.class_name}\n"
        f"  pip install pytest && python -m pytest\n"
        f"Then write your own task in {project.package}/env.py. README.md has the way to training."
    )
    return 0
