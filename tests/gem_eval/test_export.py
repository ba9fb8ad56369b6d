"""Tests of `gem-rl export`: SFT and DPO datasets from episodes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gem_core import RandomPlayer, RecordWriter, run_batch, tasks_for
from gem_core.__main__ import main
from gem_core.errors import ConfigError
from gem_core.policies.players import ExpertPlayer
from gem_core.types import Message
from gem_eval.export import dpo_rows, sft_rows

ENV = "game:GuessTheNumber-v0-easy"


def episodes(player: Any, count: int = 6) -> list[Any]:
    return run_batch(tasks_for(ENV, seeds=range(count)), player)


def test_sft_rows_are_the_turns_of_successful_episodes() -> None:
    played = episodes(ExpertPlayer())
    rows = list(sft_rows(played))
    assert len(rows) == sum(len(episode.turns) for episode in played)
    first, second = rows[0], rows[1]
    assert set(first) == {"prompt", "completion", "env_id", "seed", "return"}
    assert [message["role"] for message in first["prompt"]] == ["user"]
    assert first["completion"] == [{"role": "assistant", "content": played[0].turns[0].action}]
    if len(played[0].turns) > 1:  # the next prompt extends this one
        assert second["prompt"][:2] == [*first["prompt"], *first["completion"]]


def test_sft_rows_leave_bad_and_failed_episodes_out() -> None:
    played = episodes(RandomPlayer(), 20)
    solved = [episode for episode in played if episode.success]
    assert 0 < len(solved) < 20
    assert {row["seed"] for row in sft_rows(played)} == {e.seed for e in solved}
    assert {row["seed"] for row in sft_rows(played, min_return=-1.0)} == set(range(20))
    assert not list(sft_rows([replace(played[0], turns=())]))


def test_sft_row_of_an_episode_is_its_conversation() -> None:
    (episode,) = episodes(ExpertPlayer(), 1)
    (row,) = sft_rows([episode], per="episode")
    roles = [message["role"] for message in row["messages"]]
    assert roles == ["user", "assistant"] * len(episode.turns)
    with pytest.raises(ConfigError, match="per must be 'turn' or 'episode'"):
        list(sft_rows([episode], per="token"))  # type: ignore[arg-type]


def test_rewritten_history_is_exported_per_turn_only() -> None:
    (episode,) = run_batch(tasks_for(ENV, seeds=[0]), ExpertPlayer())
    assert len(episode.turns) > 1
    restarted = replace(
        episode.turns[1], restarted=True, messages=(Message("user", "everything anew"),)
    )
    episode = replace(episode, turns=(episode.turns[0], restarted, *episode.turns[2:]))
    rows = list(sft_rows([episode]))
    assert rows[1]["prompt"] == [{"role": "user", "content": "everything anew"}]
    with pytest.raises(ConfigError, match="export it per turn"):
        list(sft_rows([episode], per="episode"))


def test_dpo_rows_end_where_two_episodes_first_differ() -> None:
    good, bad = episodes(ExpertPlayer(), 20), episodes(RandomPlayer(), 20)
    rows = list(dpo_rows([*bad, *good]))
    assert rows
    for row in rows:
        assert row["return"] > row["rejected_return"]
        assert row["chosen"] != row["rejected"]
        assert len(row["chosen"]) == len(row["rejected"]) == 1
        best, worse = good[row["seed"]], bad[row["seed"]]
        turn = sum(message["role"] == "assistant" for message in row["prompt"])
        assert row["chosen"][0]["content"] == best.turns[turn].action
        assert row["rejected"][0]["content"] == worse.turns[turn].action
        assert [t.action for t in best.turns[:turn]] == [t.action for t in worse.turns[:turn]]
    assert not list(dpo_rows([*bad, *good], margin=5.0))
    with pytest.raises(ConfigError, match="margin must be at least 0"):
        list(dpo_rows(good, margin=-1.0))


def test_command_exports_records_and_experts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with RecordWriter(tmp_path / "run" / "episodes.jsonl") as record:
        run_batch(tasks_for(ENV, seeds=range(4)), ExpertPlayer(), on_episode=record.write)
    out = tmp_path / "new" / "sft.jsonl"
    assert main(["export", "sft", str(tmp_path / "run"), "--out", str(out)]) == 0
    recorded = sorted(out.read_text().splitlines())  # a record has the order of completion
    assert main(["export", "sft", ENV, "--episodes", "4", "--out", str(out)]) == 0
    assert sorted(out.read_text().splitlines()) == recorded
    assert main(["export", "dpo", ENV, "--episodes", "9", "--out", str(tmp_path / "dpo")]) == 0
    assert "rows" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["sft", "nowhere"], "neither a file nor an environment id"),
        (["sft", "game:Nope-v0"], "no environment is registered"),
        (["sft", ENV, "--episodes", "0"], "--episodes must be at least 1"),
        (["sft", ENV, "--min-return", "9", "--episodes", "2"], "no episode has a return of 9"),
        (["dpo", ENV, "--margin", "9", "--episodes", "2"], "no two episodes of the same task"),
        (["dpo", ENV, "--min-return", "5"], "--min-return is a setting of sft"),
        (["dpo", ENV, "--per", "turn"], "--per is a setting of sft"),
        (["sft", ENV, "--margin", "0"], "--margin is a setting of dpo"),
    ],
)
def test_export_that_cannot_succeed_leaves_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], problem: str
) -> None:
    assert main(["export", *arguments, "--out", str(tmp_path / "x.jsonl")]) != 0
    assert problem in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def recorded(path: Path) -> bytes:
    with RecordWriter(path) as record:
        run_batch(tasks_for(ENV, seeds=[0]), ExpertPlayer(), on_episode=record.write)
    return path.read_bytes()


def test_export_does_not_replace_a_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, other, link = (tmp_path / f"{name}.jsonl" for name in ("source", "other", "link"))
    before = recorded(source)
    assert recorded(other)
    link.symlink_to(source)
    for out, problem in (
        (source, "is the input of the command"),
        (link, "is the input of the command"),
        (other, "is an episode record"),
    ):
        assert main(["export", "sft", str(source), "--out", str(out)]) == 2
        assert problem in capsys.readouterr().err
    assert main(["export", "sft", ENV, "--episodes", "1", "--out", str(source)]) == 2
    assert source.read_bytes() == before
    other.write_text('{"gem_record": 99}\n')
    assert main(["export", "sft", str(source), "--out", str(other)]) == 2
    assert "is an episode record" in capsys.readouterr().err, "of a newer gem"
    for name in ("sft.jsonl", "sft.jsonl", "sft.jsonl.gz", "sft.jsonl.gz"):
        out = tmp_path / name  # an older dataset is replaced
        assert main(["export", "sft", str(source), "--out", str(out)]) == 0


def test_path_that_cannot_be_written_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(tmp_path / "a.jsonl")
    out = str(tmp_path / ("x" * 300))
    for command in ("export sft", "view"):
        assert main([*command.split(), str(tmp_path / "a.jsonl"), "--out", out]) == 2
        assert f"cannot write {out}: " in capsys.readouterr().err
    assert main(["eval", ENV, "--model", "random", "--out", out]) == 2
    assert "cannot write to " in capsys.readouterr().err


@pytest.mark.parametrize("setting", [["--args", "{}"], ["--episodes", "100"], ["--seed", "0"]])
def test_export_of_a_record_rejects_settings_of_played_episodes(
    setting: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(tmp_path / "a.jsonl")
    command = ["export", "sft", str(tmp_path / "a.jsonl"), *setting, "--out", str(tmp_path / "x")]
    assert main(command) == 2
    assert f"{setting[0]} needs an environment id" in capsys.readouterr().err
