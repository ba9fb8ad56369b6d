"""Compare step and reset times of the twelve games with the reference, in processor time.

    python benchmarks/games.py  # first makes a virtual environment for the reference, once

Both sides get the same texts: a sentence and a boxed action. Actions do not depend on the state, so
many of them are invalid moves. `GEM_REFERENCE_PYTHON` names an interpreter that has the reference.
The reference's word games use gem's word lists instead of those of NLTK.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DATA = ROOT / "plugins" / "gem_envs" / "data"
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
GAMES = """
GuessTheNumber Mastermind Minesweeper Wordle FifteenPuzzle Hangman
Sudoku TowerofHanoi Game2048 Sokoban Crosswords WordSearch
"""
MOVES = ("up", "down", "left", "right")
SLOW = ("Sokoban-hard", "Sudoku-hard")
"""Games whose reset takes seconds in the reference."""


def actions(game: str, hard: bool, rng: random.Random) -> Callable[[], str]:
    """Return a function that draws actions of a game."""

    def line() -> str:
        first, last = sorted(rng.sample(range(8), 2))
        at = rng.randrange(8)
        return f"{at} {first} {at} {last}" if rng.random() < 0.5 else f"{first} {at} {last} {at}"

    length, size, scale = (5, 8, 9) if hard else (3, 5, 4)
    common = (DATA / "words_common.txt").read_text(encoding="utf-8").split()
    words = [word.upper() for word in common if len(word) == length]
    return {
        "GuessTheNumber": lambda: str(rng.randint(1, 50 if hard else 10)),
        "Mastermind": lambda: " ".join(
            map(str, rng.sample(range(1, 9 if hard else 7), 4 if hard else 2))
        ),
        "Minesweeper": lambda: f"reveal {rng.randrange(size)} {rng.randrange(size)}",
        "Wordle": lambda: rng.choice(words),
        "FifteenPuzzle": lambda: rng.choice(MOVES),
        "Hangman": lambda: rng.choice(LETTERS),
        "Sudoku": lambda: " ".join(str(rng.randint(1, scale)) for _ in range(3)),
        "TowerofHanoi": lambda: " ".join(rng.sample("ABC", 2)),
        "Game2048": lambda: rng.choice(MOVES),
        "Sokoban": lambda: rng.choice(MOVES),
        "Crosswords": lambda: f"{rng.randrange(6)} {rng.randrange(6)} {rng.choice(LETTERS)}",
        "WordSearch": line,
    }[game]


def measure(make: Callable[[str], Any], resets: int, steps: int) -> dict[str, tuple[float, float]]:
    """Return the median microseconds per step and milliseconds per reset of each game."""
    clock = time.process_time
    table = {}
    for game in GAMES.split():
        for variant in ("easy", "hard"):
            name = f"{game}-{variant}"
            env = make(f"game:{game}-v0-{variant}")
            draw = actions(game, variant == "hard", random.Random(1))
            reset_times: list[float] = []
            step_times: list[float] = []
            total = seed = 0
            while total < steps or len(reset_times) < resets:
                began = clock()
                env.reset(seed=seed)
                reset_times.append(clock() - began)
                texts = [f"Let me think about it. \\boxed{{{draw()}}}" for _ in range(64)]
                count, began = 0, clock()
                for text in texts:
                    result = env.step(text)
                    count += 1
                    if result[2] or result[3]:
                        break
                step_times.append((clock() - began) / count)
                total += count
                seed += 1
                if name in SLOW and sum(reset_times) > 5:
                    break
            table[name] = (
                1e6 * statistics.median(step_times),
                1e3 * statistics.median(reset_times),
            )
    return table


def maker(side: str) -> Callable[[str], Any]:
    """Return the `make` function of a side."""
    if side == "gem":
        sys.path[:0] = [str(ROOT), str(ROOT / "adapters")]
        from gem_core import make

        return make
    folder = Path(tempfile.mkdtemp())
    lists = folder / "corpora" / "words"
    lists.mkdir(parents=True)
    common = (DATA / "words_common.txt").read_text(encoding="utf-8")
    (lists / "en").write_text(
        common + (DATA / "words_more.txt").read_text(encoding="utf-8"), encoding="utf-8"
    )
    # NLTK's basic list has 850 words
    (lists / "en-basic").write_text("\n".join(common.split()[::9]) + "\n", encoding="utf-8")
    os.environ["NLTK_DATA"] = str(folder)
    import nltk

    nltk.download = lambda *_, **__: True
    import gem

    return gem.make


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--side",
        choices=("gem", "reference"),
        help="measure only one side; write JSON to --out",
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--resets", type=int, default=40)
    parser.add_argument("--steps", type=int, default=4000)
    args = parser.parse_args()
    if args.side:
        args.out.write_text(
            json.dumps(measure(maker(args.side), args.resets, args.steps)), encoding="utf-8"
        )
        return

    from reference_venv import REFERENCE, reference_python

    tables = {}
    for side, python in (("gem", Path(sys.executable)), ("reference", reference_python())):
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "table.json"
            command = [str(python), __file__, "--side", side, "--out", str(out)]
            command += ["--resets", str(args.resets), "--steps", str(args.steps)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            tables[side] = json.loads(out.read_text(encoding="utf-8"))
    print(f"gem and {REFERENCE}, Python {sys.version.split()[0]}, processor time, medians\n")
    head = ("game", "µs per step, gem", "reference", "speed-up")
    head += ("ms per reset, gem", "reference", "at most max(2x, 1 ms)")
    print(f"| {' | '.join(head)} |")
    print("|---" * len(head) + "|")
    for name, (step, reset) in tables["gem"].items():
        their_step, their_reset = tables["reference"][name]
        passes = "yes" if reset <= max(2 * their_reset, 1.0) else "NO"
        steps = f"{step:.1f} | {their_step:.1f} | {their_step / step:.2f}"
        print(f"| {name} | {steps} | {reset:.3f} | {their_reset:.3f} | {passes} |")


if __name__ == "__main__":
    main()
