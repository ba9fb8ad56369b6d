"""Games: every puzzle is solvable in its turns, pays at most 1 and is reproducible.

Each measured bug of the reference implementation has a test here.
"""

from __future__ import annotations

import copy
import pickle
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from game_experts import GAMES, expert_for, play

from gem_core.env import registry
from gem_core.env.base import Env
from gem_core.env.registry import list_envs, make
from gem_core.errors import ConfigError, ResetNeededError
from gem_envs.games import crosswords, words

IDS = list_envs("game:*")
FIXED = [id for id in IDS if not id.endswith("-random")]
LONG = ("game:Game2048-v0", "game:Game2048-v0-hard", "game:Game2048-v0-extreme-hard")
"""Ids whose expert needs hundreds of turns and seconds per episode."""


def bare(id: str, seed: int = 0, **kwargs: Any) -> Any:
    """Return the game without its action format, after `reset`."""
    game: Any = make(id, **kwargs).unwrapped
    game.reset(seed=seed)
    return game


# All games.


def test_every_game_has_a_default_easy_hard_and_random_variant() -> None:
    expected = {
        f"game:{name}-v0{variant}"
        for name in GAMES
        for variant in ("", "-easy", "-hard", "-random")
    }
    assert set(IDS) == expected | {"game:Game2048-v0-extreme-hard"}


@pytest.mark.parametrize("id", IDS)
def test_expert_solves_every_puzzle_in_its_turns_with_return_one(id: str) -> None:
    env: Any = make(id)
    for seed in range(1 if id in LONG else 25):
        rewards, info, truncated = play(env, seed, expert_for(id))
        assert sum(rewards) == pytest.approx(1.0, abs=1e-9), f"seed {seed} pays {sum(rewards)}"
        assert info["success"] is True
        assert not truncated
        assert len(rewards) <= env.max_turns


@pytest.mark.parametrize("id", IDS)
def test_random_player_plays_legally_and_does_not_always_win(id: str) -> None:
    env: Any = make(id)
    wins, returns = 0, []
    for seed in range(12):
        rewards, info, truncated = play(env, seed)
        assert "format_error" not in info
        assert len(rewards) == env.max_turns if truncated else len(rewards) <= env.max_turns
        wins += info["success"]
        returns.append(sum(rewards))
        assert -1e-9 <= sum(rewards) <= 1 + 1e-9
    assert wins < 12
    assert statistics.mean(returns) < 0.99


@pytest.mark.parametrize("id", IDS)
def test_sampled_actions_are_never_rejected(id: str) -> None:
    """A rejected action only costs the turn; a sampled action must have an effect."""
    rejections = (
        "before",
        "already",
        "not on the board",
        "changes nothing",
        "cannot be",
        "No tile",
        "wall",
        "empty.",
        "go from",
    )
    env: Any = make(id)
    for seed in range(5):
        observation, _ = env.reset(seed=seed)
        for _ in range(40):
            observation, _, terminated, truncated, _ = env.step(env.sample_action())
            assert not any(word in observation.split("\n")[0] for word in rejections), observation
            if terminated or truncated:
                break


@pytest.mark.parametrize("id", IDS)
def test_unreadable_action_ends_the_game_as_a_format_error(id: str) -> None:
    for action in ("", " ", "\\boxed{}", "\\boxed{?}", "\\boxed{1 2 3 4 5 6 x}", "no box"):
        env = make(id)
        env.reset(seed=1)
        observation, reward, terminated, truncated, info = env.step(action)
        assert (reward, terminated, truncated, info["success"], info["format_error"]) == (
            -0.1,
            True,
            False,
            False,
            True,
        )
        assert observation
        with pytest.raises(ResetNeededError):
            env.step(action)


@pytest.mark.parametrize("id", IDS)
def test_huge_action_gets_a_short_and_fast_answer(id: str) -> None:
    env = make(id)
    for text in ("x" * 1_000_000, "9" * 1_000_000, "1 " * 500_000, "a " * 500_000):
        env.reset(seed=1)
        began = time.process_time()
        observation, *_ = env.step(f"\\boxed{{{text}}}")
        assert time.process_time() - began < 0.5
        assert len(observation) < 2_000


@pytest.mark.parametrize("id", IDS)
def test_non_ascii_digits_are_a_format_error(id: str) -> None:
    env = make(id)
    env.reset(seed=1)
    *_, info = env.step("\\boxed{١ ١ ١ ١}")
    assert info["format_error"]


@pytest.mark.parametrize("id", FIXED)
def test_registered_turns_match_the_game(id: str) -> None:
    assert registry.spec(id).turns == bare(id).max_turns


@pytest.mark.parametrize("id", [id for id in IDS if id.endswith("-random")])
def test_random_variant_draws_its_parameters_at_each_reset(id: str) -> None:
    game: Any = make(id).unwrapped

    def parameters(seed: int) -> tuple[Any, ...]:
        game.reset(seed=seed)
        return tuple(
            value
            for name, value in sorted(vars(game).items())
            if name in ("max_turns", "hardcore", "min_number")
        )

    assert len({parameters(seed) for seed in range(30)}) > 1
    assert parameters(7) == parameters(7)


@pytest.mark.parametrize("id", [id for id in IDS if id.endswith("-random")])
def test_random_variant_rejects_the_parameters_it_draws(id: str) -> None:
    env: Any = make(id)
    drawn = vars(env.unwrapped).keys() & registry.spec(id.replace("-random", "-hard")).kwargs.keys()
    assert "max_turns" in drawn and len(drawn) >= 2
    for name in drawn:
        with pytest.raises(ConfigError, match=rf"^{name} cannot be set together with randomize"):
            make(id, **{name: getattr(env, name)})
    with pytest.raises(ConfigError, match="use the id that ends in -random"):
        make(id.removesuffix("-random"), randomize=True)


def test_random_variant_accepts_the_parameters_it_does_not_draw() -> None:
    assert bare("game:Hangman-v0-random", hardcore=True).hardcore
    assert bare("game:Mastermind-v0-random", duplicate_numbers=True).duplicate_numbers
    assert not bare("game:Wordle-v0-random", only_real_words=False).only_real_words
    assert bare("game:Game2048-v0-random", board_size=3).board_size == 3
    with pytest.raises(ConfigError, match="board_size must be an integer from 3 to 8, got 2"):
        make("game:Game2048-v0-random", board_size=2)


@pytest.mark.parametrize("id", IDS)
def test_pickled_game_continues_identically(id: str) -> None:
    env = make(id)
    env.reset(seed=4)
    for _ in range(2):
        if env.step(env.sample_action())[2:4] != (False, False):
            env.reset(seed=4)
    clone: Env = pickle.loads(pickle.dumps(env))
    while True:
        action = env.sample_action()
        assert clone.sample_action() == action
        result = env.step(action)
        assert clone.step(action) == result
        if result[2] or result[3]:
            break


@pytest.mark.parametrize("id", IDS)
def test_game_neither_reads_nor_changes_the_global_random_state(id: str) -> None:
    transcripts = []
    for noise in (1, 2):
        random.seed(noise)
        before = random.getstate()
        env = make(id)
        observations = [env.reset(seed=5)[0]]
        while not env.ended:
            observations.append(env.step(env.sample_action())[0])
        transcripts.append(observations)
        assert random.getstate() == before
    assert transcripts[0] == transcripts[1]


_TRANSCRIPTS = """
import hashlib
from gem_core.env.registry import list_envs, make
for id in list_envs("game:*"):
    env, digest = make(id), hashlib.sha256()
    for seed in range(3):
        digest.update(env.reset(seed=seed)[0].encode())
        while not env.ended:
            action = env.sample_action()
            digest.update(repr((action, env.step(action))).encode())
    print(id, digest.hexdigest())
"""


def test_transcripts_are_equal_under_any_hash_seed() -> None:
    outputs = []
    for hash_seed in ("0", "1", "4242"):
        environment = {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": ":".join(sys.path)}
        done = subprocess.run(
            [sys.executable, "-c", _TRANSCRIPTS],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        outputs.append(done.stdout)
    assert outputs[0].count("\n") == len(IDS)
    assert outputs[0] == outputs[1] == outputs[2]


@pytest.mark.parametrize(
    "name", ["GuessTheNumber", "Hangman", "Mastermind", "Minesweeper", "Wordle"]
)
@pytest.mark.parametrize("variant", ["", "-easy", "-hard"])
def test_prompt_does_not_depend_on_the_secret(name: str, variant: str) -> None:
    """This also ensures that no example in the prompt is the answer."""
    env = make(f"game:{name}-v0{variant}")
    assert len({env.reset(seed=seed)[0] for seed in range(100)}) == 1


def test_action_example_of_the_word_games_is_not_a_word() -> None:
    for id in ("game:Wordle-v0", "game:Hangman-v0"):
        assert not words.is_word(make(id).action_example.upper())


@pytest.mark.parametrize("id", ["game:GuessTheNumber-v0-easy", "game:GuessTheNumber-v0-random"])
def test_action_example_of_guess_the_number_is_not_a_number(id: str) -> None:
    prompt, _ = make(id).reset(seed=1)
    assert "\\boxed{n}" in prompt


@pytest.mark.parametrize(
    ("id", "kwargs"),
    [
        ("Mastermind", {"code_length": 5, "num_numbers": 4}),
        ("Mastermind", {"code_length": 0}),
        ("Mastermind", {"max_turns": "7"}),
        ("Mastermind", {"max_turns": True}),
        ("Minesweeper", {"num_mines": 64}),
        ("Minesweeper", {"rows": 1}),
        ("Minesweeper", {"max_turns": 10}),
        ("Wordle", {"word_length": 2}),
        ("Wordle", {"word_length": 20}),
        ("FifteenPuzzle", {"num_rows": 1}),
        ("FifteenPuzzle", {"num_rows": None}),
        ("Hangman", {"word_length": 1}),
        ("Hangman", {"max_turns": 0}),
        ("Sudoku", {"scale": 5}),
        ("Sudoku", {"clues": 0}),
        ("Sudoku", {"clues": 50, "max_turns": 49}),
        ("TowerofHanoi", {"num_disks": 4, "max_turns": 14}),
        ("Game2048", {"target_tile": 100}),
        ("Game2048", {"target_tile": 512, "max_turns": 50}),
        ("Game2048", {"target_tile": 2048, "max_turns": 100}),
        ("Game2048", {"board_size": 2, "target_tile": 64, "max_turns": 100}),
        ("Sokoban", {"dim_room": (4, 4)}),
        ("Sokoban", {"dim_room": 6}),
        ("Sokoban", {"num_boxes": 9}),
        ("Sokoban", {"max_turns": 5}),
        ("Crosswords", {"num_words": 0}),
        ("Crosswords", {"num_words": 5, "max_turns": 20}),
        ("WordSearch", {"num_words": 21}),
        ("WordSearch", {"num_words": 5, "max_turns": 4}),
        ("WordSearch", {"seed": 1}),
    ],
)
def test_make_rejects_invalid_parameters(id: str, kwargs: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        make(f"game:{id}-v0", **kwargs)


@pytest.mark.parametrize(
    ("id", "kwargs"),
    [
        ("Mastermind", {"code_length": 3, "num_numbers": 3, "duplicate_numbers": True}),
        ("Mastermind", {"code_length": 3, "num_numbers": 20}),
        ("Minesweeper", {"rows": 3, "cols": 3, "num_mines": 8, "max_turns": 9}),
        ("Minesweeper", {"rows": 2, "cols": 7, "num_mines": 1, "max_turns": 20}),
        ("Wordle", {"word_length": 8}),
        ("Wordle", {"only_real_words": False}),
        ("FifteenPuzzle", {"num_rows": 2, "max_turns": 1}),
        ("FifteenPuzzle", {"num_rows": 10, "max_turns": 30}),
        ("Hangman", {"word_length": 8, "hardcore": True}),
        ("Sudoku", {"scale": 4, "clues": 16, "max_turns": 16}),
        ("Sudoku", {"scale": 9, "clues": 81, "max_turns": 81}),
        ("TowerofHanoi", {"num_disks": 1, "max_turns": 1}),
        ("Game2048", {"board_size": 3, "target_tile": 32, "max_turns": 60}),
        ("Game2048", {"board_size": 6, "target_tile": 32, "max_turns": 60}),
        ("Sokoban", {"dim_room": [5, 5], "num_boxes": 1, "max_turns": 8}),
        ("Sokoban", {"dim_room": (5, 12), "num_boxes": 6, "max_turns": 60}),
        ("Crosswords", {"num_words": 15, "max_turns": 90, "hardcore": True}),
        ("Crosswords", {"num_words": 1, "max_turns": 6}),
        ("WordSearch", {"num_words": 12}),
    ],
)
def test_puzzles_with_unusual_parameters_are_solvable(id: str, kwargs: dict[str, Any]) -> None:
    env = make(f"game:{id}-v0", **kwargs)
    for seed in range(10):
        rewards, info, _ = play(env, seed, expert_for(f"game:{id}-v0"))
        assert info["success"], (seed, rewards)
        assert sum(rewards) == pytest.approx(1.0)


def test_last_turn_includes_the_feedback_on_its_action() -> None:
    game = bare("game:Hangman-v0-hard", max_turns=1)
    missing = next(letter for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if letter not in game.secret)
    observation, reward, terminated, truncated, info = game.step(missing)
    assert f"{missing} is not in the word" in observation
    assert "last of 1 turns" in observation
    assert (reward, terminated, truncated, info) == (0.0, False, True, {"success": False})


# Single games, with the measured bugs of the reference.


def test_mastermind_counts_pegs_of_repeated_numbers_once() -> None:
    game = bare("game:Mastermind-v0", code_length=4, num_numbers=6, duplicate_numbers=True)
    game.code = [1, 1, 2, 3]
    assert game.step("1 2 1 1")[0] == "1 2 1 1: 1 black, 2 white."
    assert game.step("4114")[0] == "4 1 1 4: 1 black, 1 white."
    assert game.step("4114")[0] == "4 1 1 4 was guessed before."
    assert "outside 1 to 6" in game.step("1 1 2 100")[0]
    assert "outside 1 to 6" in game.step("0 1 2 3")[0]


@pytest.mark.parametrize("guess", ["1234", " 1234", "1234\n", "\t1 2 3 4 "])
def test_mastermind_ignores_blanks_around_a_guess(guess: str) -> None:
    env = make("game:Mastermind-v0")
    env.reset(seed=1)
    assert env.step(f"\\boxed{{{guess}}}")[0].startswith("1 2 3 4: ")


def test_minesweeper_is_won_at_the_last_safe_cell_without_flags() -> None:
    rewards, info, _ = play(make("game:Minesweeper-v0-hard"), 3, expert_for("game:Minesweeper-v0"))
    assert info["success"]
    assert sum(rewards) == pytest.approx(1.0)


def test_minesweeper_can_be_won_after_a_wrong_flag() -> None:
    game = bare("game:Minesweeper-v0-easy", seed=3)
    game.step("flag 0 0")
    for action in expert_for("game:Minesweeper-v0")(game):
        *_, info = game.step(action)
        if game.ended:
            break
    if not game.ended:
        assert "flagged" in game.step("reveal 0 0")[0]
        game.step("flag 0 0")
        *_, info = game.step("reveal 0 0")
    assert info["success"]


def test_minesweeper_places_mines_next_to_the_first_cell_when_the_board_is_full() -> None:
    game = bare("game:Minesweeper-v0", rows=3, cols=3, num_mines=5, max_turns=9)
    _, reward, terminated, *_ = game.step("reveal 1 1")
    assert not terminated
    assert reward == 0.25
    assert game.counts.count(-1) == 5


def test_minesweeper_first_cell_has_no_mine_around_it() -> None:
    for seed in range(50):
        game = bare("game:Minesweeper-v0-hard", seed)
        game.step("reveal 4 4")
        assert game.shown[4 * 8 + 4] == "0"


def test_minesweeper_seed_gives_similar_boards_for_any_first_cell() -> None:
    boards = []
    for first in ("reveal 0 0", "reveal 0 1", "reveal 7 7"):
        game = bare("game:Minesweeper-v0-hard", seed=11)
        game.step(first)
        boards.append({cell for cell, count in enumerate(game.counts) if count == -1})
    assert len(boards[0] & boards[1] & boards[2]) >= 6


def test_wordle_marks_a_letter_as_often_as_it_occurs_in_the_word() -> None:
    game = bare("game:Wordle-v0-hard")
    game.secret = "ABBEY"
    assert game.step("babes")[0] == "B A B E S\nY Y G G X"
    assert game.step("ebbed")[0] == "E B B E D\nX G G G X"


def test_wordle_rejects_unknown_words_unless_only_real_words_is_false() -> None:
    game = bare("game:Wordle-v0-hard")
    observation, reward, terminated, *_ = game.step("zzzzz")
    assert "not in my list" in observation
    assert (reward, terminated) == (0.0, False)
    permissive = bare("game:Wordle-v0-hard", only_real_words=False)
    assert "X" in permissive.step("zzzzz")[0]


def test_wordle_pays_a_green_place_once() -> None:
    game = bare("game:Wordle-v0-hard")
    game.secret = "ABBEY"
    assert [game.step(guess)[1] for guess in ("alley", "alley", "valid", "abbot")] == pytest.approx(
        [0.3, 0.0, 0.0, 0.2]
    )


@pytest.mark.parametrize(
    "id",
    ["game:FifteenPuzzle-v0-easy", "game:FifteenPuzzle-v0-hard", "game:FifteenPuzzle-v0-random"],
)
def test_fifteen_puzzle_boards_are_different_unsolved_and_solvable(id: str) -> None:
    boards = set()
    for seed in range(200):
        game = bare(id, seed)
        boards.add(tuple(game.board))
        assert game.board != game.solved
        size = game.num_rows
        order = [tile for tile in game.board if tile]
        swaps = sum(a > b for i, a in enumerate(order) for b in order[i + 1 :])
        rows_below = size - 1 - game.board.index(0) // size
        parity = (swaps + (rows_below if size % 2 == 0 else 0)) % 2
        assert parity == 0, f"the board of seed {seed} is unsolvable"
    assert len(boards) >= (9 if id.endswith("easy") else 60)


def test_fifteen_puzzle_easy_boards_are_solvable_in_six_moves() -> None:
    for seed in range(40):
        start = bare("game:FifteenPuzzle-v0-easy", seed)
        frontier, seen, depth = [start], {tuple(start.board)}, 0
        while not any(game.board == game.solved for game in frontier):
            following = []
            for game in frontier:
                for move in game._moves():
                    after = copy.deepcopy(game)
                    after._slide(move)
                    if tuple(after.board) not in seen:
                        seen.add(tuple(after.board))
                        following.append(after)
            frontier, depth = following, depth + 1
        assert depth <= 6 <= start.max_turns


def test_fifteen_puzzle_pays_the_fraction_of_tiles_put_in_place_at_the_last_turn() -> None:
    game = bare("game:FifteenPuzzle-v0-hard", max_turns=1)
    game.board, game.empty = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0, 13, 14, 15], 12
    game.initially_in_place = 12
    _, reward, terminated, truncated, info = game.step("left")
    assert (reward, terminated, truncated, info["success"]) == (1 / 4, False, True, False)


@pytest.mark.parametrize("id", ["game:FifteenPuzzle-v0-easy", "game:FifteenPuzzle-v0-hard"])
def test_fifteen_puzzle_pays_nothing_for_moves_without_effect(id: str) -> None:
    for seed in range(20):
        game = bare(id, seed)
        stuck = [move for move in ("up", "down", "left", "right") if move not in game._moves()]
        if stuck:
            assert sum(game.step(stuck[0])[1] for _ in range(game.max_turns)) == 0.0


def test_hangman_is_won_at_the_last_letter() -> None:
    game = bare("game:Hangman-v0-hard", seed=2)
    rewards = []
    for letter in dict.fromkeys(game.secret):
        *_, info = result = game.step(letter.lower())
        rewards.append(result[1])
    assert game.ended
    assert info["success"]
    assert sum(rewards) == pytest.approx(1.0)


def test_sudoku_prompt_names_the_number_and_size_of_the_boxes() -> None:
    assert "4 boxes of 2 x 2 cells" in make("game:Sudoku-v0-easy").reset(seed=1)[0]
    assert "9 boxes of 3 x 3 cells" in make("game:Sudoku-v0-hard").reset(seed=1)[0]


def test_sudoku_empties_the_requested_number_of_cells() -> None:
    """A 4 x 4 grid may keep up to two more digits, which its unique solution needs."""
    assert {bare("game:Sudoku-v0-hard", seed).empties for seed in range(10)} == {50}
    easy = [bare("game:Sudoku-v0-easy", seed).empties for seed in range(100)]
    assert max(easy) == 10
    assert min(easy) >= 8
    assert statistics.mean(easy) > 9.5


def test_hanoi_rejects_a_move_from_a_peg_to_itself() -> None:
    game = bare("game:TowerofHanoi-v0-easy")
    observation, reward, *_ = game.step("A A")
    assert "two different pegs" in observation
    assert reward == 0.0
    assert game.pegs == {"A": [3, 2, 1], "B": [], "C": []}
    assert game.step("a,b")[0].startswith("You moved disk 1 from A to B.\nA: 3 2\nB: 1\nC:")


def test_2048_merges_each_tile_once_per_move() -> None:
    game = bare("game:Game2048-v0-easy")
    game.board = [2, 2, 2, 2, 4, 4, 8, 0, 0, 2, 0, 2, 0, 0, 0, 0]
    game._slide("left")
    assert game.board == [4, 4, 0, 0, 8, 8, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0]
    game._slide("down")
    assert game.board == [0, 0, 0, 0, 4, 0, 0, 0, 8, 4, 0, 0, 4, 8, 0, 0]


def test_2048_is_lost_when_no_move_changes_the_board() -> None:
    game = bare("game:Game2048-v0-hard")
    game.board = [2, 4, 8, 16, 16, 8, 4, 2, 2, 64, 128, 16, 0, 32, 16, 8]
    observation, _, terminated, truncated, info = game.step("left")
    assert "No move is left" in observation
    assert (terminated, truncated, info) == (True, False, {"success": False})


def test_sokoban_hard_resets_in_milliseconds() -> None:
    env = make("game:Sokoban-v0-hard")
    seconds = []
    for seed in range(60):
        began = time.process_time()
        env.reset(seed=seed)
        seconds.append(time.process_time() - began)
    assert statistics.median(seconds) < 0.05


@pytest.mark.parametrize(
    "id", ["game:Sokoban-v0-easy", "game:Sokoban-v0-hard", "game:Sokoban-v0-random"]
)
def test_sokoban_rooms_are_different_walled_and_start_with_no_box_on_a_target(id: str) -> None:
    rooms = set()
    for seed in range(60):
        game = bare(id, seed)
        rooms.add(tuple(game.cells))
        assert game.cells.count("X") == game.num_boxes
        assert game.fixed.count("O") == game.num_boxes
        assert "√" not in game.cells
        assert len(game.solution) <= game.max_turns
        rows, cols = game.dim_room
        border = [
            r * cols + c
            for r in range(rows)
            for c in range(cols)
            if r in (0, rows - 1) or c in (0, cols - 1)
        ]
        assert {game.fixed[cell] for cell in border} == {"#"}
    assert len(rooms) > 50


def test_sokoban_shows_the_target_under_the_player() -> None:
    for seed in range(50):
        game = bare("game:Sokoban-v0-easy", seed)
        if game.fixed[game.player] == "O":
            assert game._board().count("S") == 1
            return
    pytest.fail("no room starts with the player on a target")


def test_sokoban_pays_the_fraction_of_boxes_on_targets_at_the_last_turn() -> None:
    for seed in range(30):
        game = bare("game:Sokoban-v0-hard", seed)
        for move in game.solution[:-1]:
            game.step(move)
        assert not game.ended
        placed = game.on_target
        game.max_turns = game.turn + 1
        step_aside = next(
            m
            for m in ("up", "down", "left", "right")
            if game.cells[game.player + game.moves[m]] in "_O"
        )
        _, reward, terminated, truncated, info = game.step(step_aside)
        assert (reward, terminated, truncated, info["success"]) == (placed / 4, False, True, False)
        assert placed == 3


def test_crosswords_are_connected_and_solvable_in_their_turns() -> None:
    for seed in range(100):
        game = bare("game:Crosswords-v0-random", seed)
        assert len(game.solution) <= game.max_turns
        cells = [set(entry.cells()) for entry in game.entries]
        joined, rest = cells[0], cells[1:]
        for _ in range(len(rest)):
            for other in [c for c in rest if c & joined]:
                joined = joined | other
                rest.remove(other)
        assert not rest
        assert min(row for row, _ in game.solution) == min(col for _, col in game.solution) == 0


@pytest.mark.parametrize("hardcore", [False, True])
def test_clues_do_not_contain_their_word(hardcore: bool) -> None:
    pairs = crosswords._clues(hardcore)
    assert len({word for word, _ in pairs}) == len(pairs) >= 120
    for word, clue in pairs:
        assert word.isascii()
        assert word.isalpha()
        assert 3 <= len(word) <= 8
        parts = "".join(c if c.isalpha() else " " for c in clue.upper()).split()
        assert not any(part in (word, word + "S", word + "ES") for part in parts), (word, clue)


def test_word_search_pays_a_word_once_in_either_direction() -> None:
    game = bare("game:WordSearch-v0-easy", seed=2)
    total = 0.0
    for cells in list(game.placed.values())[:-1]:
        first, last = divmod(cells[0], game.size), divmod(cells[-1], game.size)
        for start, end in ((first, last), (last, first), (first, last)):
            total += game.step(f"{start[0]} {start[1]} {end[0]} {end[1]}")[1]
    assert total == pytest.approx(0.8)


def test_word_search_grid_contains_all_words() -> None:
    for seed in range(100):
        game = bare("game:WordSearch-v0-random", seed)
        assert len(game.placed) == game.num_words == 5
        for word, cells in game.placed.items():
            assert "".join(game.grid[cell] for cell in cells) == word


# The word lists.


def test_word_lists_are_sorted_lower_case_and_disjoint() -> None:
    common, more = (
        words.read_data(name).split() for name in ("words_common.txt", "words_more.txt")
    )
    for word_list in (common, more):
        assert word_list == sorted(set(word_list))
        assert all(word.isascii() and word.islower() for word in word_list)
        assert all(words.SHORTEST <= len(word) <= words.LONGEST for word in word_list)
    assert not set(common) & set(more)
    for length in range(words.SHORTEST, words.LONGEST + 1):
        assert len(words.common_words(length)) > 200
        assert len(words.more_words(length)) > 200
    assert words.is_word("HOUSE")
    assert not words.is_word("ZZZZZ")


def test_shipped_data_is_small_and_listed_in_its_readme() -> None:
    folder = Path(words.__file__).parents[1] / "data"
    assert sum(path.stat().st_size for path in folder.iterdir()) < 400_000
    readme = (folder / "README.md").read_text(encoding="utf-8")
    assert all(path.name in readme for path in folder.iterdir() if path.name != "README.md")
