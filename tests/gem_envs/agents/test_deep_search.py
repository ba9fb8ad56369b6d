"""Deep search: the answer is found by searching, in the sample and in a corpus of one's own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from project import ROOT

from gem_core import make, run_batch, tasks_for
from gem_core.errors import ConfigError
from gem_core.policies.players import ExpertPlayer
from gem_envs.agents import deep_search
from gem_envs.agents.deep_search import DeepSearch
from gem_tools.search import Index

ID = "search:DeepSearch-v0"


def test_every_question_of_the_sample_is_answered_by_what_searching_shows() -> None:
    env = DeepSearch()
    for index in range(env.count()):
        env.reset(seed=0, options={"index": index})
        *searches, answer = env.expert()
        shown = "".join(env.step(search)[0] for search in searches)
        assert env.row["answer"][0] in shown
        assert env.step(answer)[1:4] == (1.0, True, False)


def test_the_sample_is_what_its_script_writes(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, ROOT / "scripts" / "make_search_sample.py", tmp_path],
        check=True,
        capture_output=True,
    )
    for name in ("sample_search.jsonl", "sample_search_corpus.jsonl"):
        shipped = Path(deep_search.__file__).parents[1] / "data" / name
        assert (tmp_path / name).read_bytes() == shipped.read_bytes()


def test_the_expert_wins_and_a_wrong_answer_does_not() -> None:
    episodes = run_batch(tasks_for(ID, seeds=range(6)), ExpertPlayer())
    assert [episode.total_reward for episode in episodes] == [1.0] * 6
    assert all(2 <= len(episode.turns) <= 4 for episode in episodes)
    env = make(ID)
    env.reset(seed=1)
    observation, reward, terminated, _, info = env.step("<answer>Atlantis</answer>")
    assert (observation, reward, terminated, info["success"]) == (
        "That is not right.",
        0.0,
        True,
        False,
    )


def test_what_counts_as_an_action() -> None:
    env = make(ID)
    env.reset(seed=1)
    shown, reward, terminated, _, info = env.step(
        "<think><answer>x</answer></think> <SEARCH>town river</SEARCH> <answer>y</answer>"
    )
    assert (
        shown.startswith("<information>\n[1] ")
        and not terminated
        and reward == 0.0
        and len(info["passages"]) == 3
    )
    shown, _, terminated, _, info = env.step("town river")
    assert (
        shown.startswith("There is no action in that.")
        and not terminated
        and info["searched"] is False
    )
    assert "Nothing was found." in env.step("<search>zzzz</search>")[0]
    for _ in range(6):
        assert not env.step("<search>river</search>")[3]
    observation, reward, terminated, truncated, info = env.step("<search>river</search>")
    assert (reward, terminated, truncated, info["success"]) == (0.0, False, True, False)
    assert "last of 10 turns" in observation


def test_a_corpus_and_questions_of_ones_own(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        json.dumps({"q": "How tall is the tower of Orn?", "a": ["81 metres", "81"]}) + "\n"
    )
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "orn.txt").write_text("The tower of Orn is 81 metres tall.\n\nIt was built in a day.")
    (texts / "elm.txt").write_text("Elms are trees.")
    lines = tmp_path / "corpus.jsonl"
    lines.write_text(
        json.dumps({"title": "Orn", "text": "The tower of Orn is 81 metres tall."}) + "\n"
    )
    Index.build(lines, tmp_path / "index")
    for corpus in (texts, lines, tmp_path / "index"):
        env = make(ID, dataset=str(rows), corpus=str(corpus), question_key="q", answer_key="a")
        assert "How tall is the tower of Orn?" in env.reset(seed=5)[0]
        assert "81 metres" in env.step("<search>tower orn</search>")[0]
        assert env.step("<answer>81</answer>")[1] == 1.0


def test_a_corpus_that_is_not_there_or_too_large_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="no corpus at"):
        make(ID, corpus=str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="corpus must be"):
        make(ID, corpus="")
    large = tmp_path / "large.jsonl"
    large.write_text(json.dumps({"text": "word " * 100}))
    monkeypatch.setattr(deep_search, "_LARGEST_TEXT", 100)
    with pytest.raises(ConfigError, match="gem-rl index"):
        make(ID, corpus=str(large))


def test_a_server_is_asked_and_makes_it_nondeterministic() -> None:
    env = make(ID, corpus="http://127.0.0.1:9")
    assert not env.deterministic
