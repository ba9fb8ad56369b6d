"""Tests of evaluation suites: the command, the report and the failure taxonomy."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gem_core.__main__ import main
from gem_core.env.registry import environments
from gem_core.errors import UnknownNameError
from gem_core.types import Episode, Failure, FinishReason, StopReason, Turn
from gem_eval.suite.report import family_scores, id_results
from gem_eval.suite.suite import GEM_EVAL_V1, Suite, missing_ids
from gem_eval.suite.taxonomy import OUTCOMES, outcome
from gem_eval.suite.transcripts import frozen_hashes


def turn(action: str = "a", **facts: Any) -> Turn:
    finish = facts.pop("finish", FinishReason.STOP)
    return Turn((), action, 0.0, finish=finish, info=facts)


def episode(*turns: Turn, success: bool = False, stop: str = "terminated") -> Episode:
    return Episode("game:A-v0", 0, turns, StopReason(stop), final_info={"success": success})


@pytest.mark.parametrize(
    ("played", "expected"),
    [
        (episode(turn("a"), success=True), "solved"),
        (episode(turn("a")), "wrong"),
        (episode(turn("a"), turn("b"), stop="truncated"), "unfinished"),
        (episode(turn("x", format_error=True)), "unreadable"),
        (episode(turn("x", format_error=True), turn("b")), "unreadable"),
        (episode(turn("b"), turn("b"), turn("x", format_error=True), turn("c")), "loop"),
        (episode(turn("a"), turn("")), "gave up"),
        (episode(turn("a"), turn("b", finish=FinishReason.REFUSED)), "gave up"),
        (episode(turn("a"), turn("Sorry, I cannot do that.")), "gave up"),
        (episode(turn("a", call_error=True), turn("b", call_error=False)), "tool error"),
        (episode(turn("a", call_error=False), turn("b", call_error=False)), "wrong"),
        (episode(turn("a", use_tool=True, tool_error=True), turn("b")), "tool error"),
        (episode(turn("a"), turn("b"), turn("b"), turn("b"), stop="turn_limit"), "loop"),
        (episode(*[turn(a) for a in "abacada"], stop="truncated"), "loop"),
        (episode(*[turn(a) for a in "abcabca"], stop="truncated"), "unfinished"),
    ],
)
def test_outcome_of_an_episode(played: Episode, expected: str) -> None:
    assert outcome(played) == expected
    assert expected in OUTCOMES


def test_failed_episode_has_its_own_outcome_and_no_score() -> None:
    failed = Episode(
        "game:A-v0", 1, (), StopReason.ENV_ERROR, failure=Failure("ValueError", "x", "step")
    )
    suite = Suite("s", {"f": ("game:A-v0",)}, 0, 2)
    results = id_results("p", suite, [episode(turn(), success=True), failed])
    assert (results[0].episodes, results[0].failed) == (2, 1)
    family, everything = family_scores(suite, results)
    assert (family.episodes, family.success, family.outcomes["failed"]) == (2, 1.0, 0.5)
    assert everything.family == "all"
    assert family_scores(suite, id_results("p", suite, [])) == []


def test_suite_has_forty_known_ids() -> None:
    assert len(GEM_EVAL_V1.ids) == len(set(GEM_EVAL_V1.ids)) == 40
    assert set(GEM_EVAL_V1.ids) <= set(environments.all())
    assert all(environments.get(id).offline for id in GEM_EVAL_V1.ids)


def test_check_names_the_environments_that_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("--families", "sql", "--seeds", "2", "--check")
    assert suite(tmp_path, *arguments) == 0
    assert "0 of 2 environments differ from gem-eval-v1" in capsys.readouterr().out
    first, *others = frozen_hashes("gem-eval-v1")["sql:Query-v0-simple"]
    changed = {**frozen_hashes("gem-eval-v1"), "sql:Query-v0-simple": [first, "other", *others[1:]]}
    monkeypatch.setattr("gem_eval.suite.transcripts.frozen_hashes", lambda name: changed)
    assert suite(tmp_path, *arguments) == 1
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "sql:Query-v0-simple: differs at the seeds 1000001"
    assert printed[-1] == "1 of 2 environments differ from gem-eval-v1"
    assert not list(tmp_path.iterdir())


def test_families_and_ids_can_be_chosen() -> None:
    chosen = GEM_EVAL_V1.only(["wiki:WikiGame-v0", "sql"])
    assert chosen.families == {
        "sql": ("sql:Query-v0-simple", "sql:Query-v0-challenging"),
        "search": ("wiki:WikiGame-v0",),
    }
    with pytest.raises(UnknownNameError, match="maze:Random-v0"):
        GEM_EVAL_V1.only(["maze:Radom-v0"])


def test_environment_over_another_corpus_is_missing() -> None:
    spec = environments.get("game:Wordle-v0-easy")
    suite = Suite("s", {"f": (spec.id,)}, 0, 1, corpora={spec.id: "1.0 Manual"})
    assert missing_ids(suite) == {spec.id: "s uses '1.0 Manual'; installed is ''"}
    assert missing_ids(replace(suite, corpora={})) == {}


def suite(tmp_path: Path, *arguments: str) -> int:
    return main(["suite", "gem-eval-v1", "--quiet", "--out", str(tmp_path), *arguments])


def test_command_writes_a_report_by_family_and_resumes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--families", "games,sql", "--seeds", "1")
    assert suite(tmp_path, *arguments) == 0
    table = capsys.readouterr().out
    assert table.split()[:5] == ["FAMILY", "PLAYER", "IDS", "EPISODES", "SCORE"]
    summary = json.loads((tmp_path / "summary.json").read_text())
    scores = {(s["family"], s["player"]): s["score"] for s in summary["scores"]}
    assert scores["games", "expert"] == scores["sql", "expert"] == scores["all", "expert"] == 1.0
    assert scores["all", "random"] < 0.6
    assert "| games | random | 6 | 6 |" in (tmp_path / "report.md").read_text()
    played = (tmp_path / "expert.jsonl").read_text()
    assert suite(tmp_path, *arguments) == 0
    assert (tmp_path / "expert.jsonl").read_text() == played
    assert capsys.readouterr().out == table


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--families", "gamse"), "games"),
        (("--seeds", "11"), "--seeds must be 1 to 10"),
        (("--model", ","), "--model must name"),
        (("--history", "template"), "need a tokenizer"),
        (("--template-kwargs", '{"a": 1}', "--model", "m", "--server", "http://h"), "tokenizer"),
        (("--template-kwargs", "a"), "--template-kwargs must be a JSON object"),
    ],
)
def test_wrong_arguments_are_usage_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    if "--families" not in arguments:
        arguments += ("--families", "games")
    assert suite(tmp_path, *arguments) == 2
    assert message in capsys.readouterr().err


def test_missing_packages_need_skip_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = dict.fromkeys(GEM_EVAL_V1.families["games"][1:], "needs a package")
    monkeypatch.setattr("gem_eval.suite.suite.missing_ids", lambda suite: missing)
    arguments = ("--families", "games", "--seeds", "1", "--model", "random")
    assert suite(tmp_path, *arguments) == 2
    assert "--skip-missing" in capsys.readouterr().err
    assert suite(tmp_path, *arguments, "--skip-missing") == 0
    assert "`game:Wordle-v0-easy`: needs a package" in (tmp_path / "report.md").read_text()
