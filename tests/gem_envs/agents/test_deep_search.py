"""Tests of deep search, with the sample corpus and with a user's corpus."""

from __future__ import annotations

import json
import os
import signal
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


def test_expert_searches_show_the_answer_to_every_sample_question() -> None:
    env = DeepSearch()
    for index in range(env.count()):
        env.reset(seed=0, options={"index": index})
        *searches, answer = env.expert()
        observations = "".join(env.step(search)[0] for search in searches)
        assert env.row["answer"][0] in observations
        assert env.step(answer)[1:4] == (1.0, True, False)


def test_shipped_sample_equals_the_output_of_its_script(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, ROOT / "scripts" / "make_search_sample.py", tmp_path],
        check=True,
        capture_output=True,
    )
    for name in ("sample_search.jsonl", "sample_search_corpus.jsonl"):
        shipped = Path(deep_search.__file__).parents[1] / "data" / name
        assert (tmp_path / name).read_bytes() == shipped.read_bytes()


def test_expert_wins_and_wrong_answer_loses() -> None:
    episodes = run_batch(tasks_for(ID, seeds=range(6)), ExpertPlayer())
    assert [episode.total_reward for episode in episodes] == [1.0] * 6
    assert all(2 <= len(episode.turns) <= 4 for episode in episodes)
    env = make(ID)
    env.reset(seed=1)
    observation, reward, terminated, _, info = env.step("<answer>Atlantis</answer>")
    assert observation == "That is not right."
    assert (reward, terminated, info["success"]) == (0.0, True, False)


def test_first_tag_outside_think_is_the_action() -> None:
    env = make(ID)
    env.reset(seed=1)
    observation, reward, terminated, _, info = env.step(
        "<think><answer>x</answer></think> <SEARCH>town river</SEARCH> <answer>y</answer>"
    )
    assert observation.startswith("<information>\n[1] ")
    assert (reward, terminated, len(info["passages"])) == (0.0, False, 3)
    observation, _, terminated, _, info = env.step("town river")
    assert observation.startswith("There is no action in that.")
    assert not terminated and info["searched"] is False
    assert "Nothing was found." in env.step("<search>zzzz</search>")[0]
    for _ in range(6):
        assert not env.step("<search>river</search>")[3]
    observation, reward, terminated, truncated, info = env.step("<search>river</search>")
    assert (reward, terminated, truncated, info["success"]) == (0.0, False, True, False)
    assert "last of 10 turns" in observation


@pytest.mark.parametrize("opening", ["<think>", ""])
def test_tag_in_the_thinking_is_not_an_action(opening: str) -> None:
    """The chat template of a reasoning model may write the <think> itself."""
    env = make(ID)
    env.reset(seed=1)
    thinking = f"{opening}Perhaps <answer>x</answer>? {'No. ' * 6_000}</think>"
    observation, _, terminated, _, info = env.step(f"{thinking} <search>river</search>")
    assert observation.startswith("<information>\n[1] ")
    assert not terminated and info["searched"] is True
    observation, _, terminated, _, info = env.step(f"{thinking} I do not know.")
    assert observation.startswith("There is no action in that.")
    assert not terminated and info["searched"] is False


def test_user_corpus_and_questions(tmp_path: Path) -> None:
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


def test_make_rejects_a_missing_or_too_large_corpus(
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


def test_retrieval_server_makes_the_environment_nondeterministic() -> None:
    env = make(ID, corpus="http://127.0.0.1:9")
    assert not env.deterministic


INDEX = """
import os
from gem_envs.agents.deep_search import DeepSearch
from gem_envs.worlds.text_index import build_index
from gem_tools.passage import Passage
DeepSearch()
build_index([Passage("1", "Rivers", "A river flows through the town.", 0.0)])
assert len(list(os.scandir(os.environ["TMPDIR"]))) > 0
os.kill(os.getpid(), {number})
"""


@pytest.mark.parametrize(
    ("number", "is_left"), [(0, False), (signal.SIGINT, False), (signal.SIGKILL, True)]
)
def test_no_index_outlives_its_process_for_long(tmp_path: Path, number: int, is_left: bool) -> None:
    """A killed process cannot remove its index; the next one does."""

    def run(number: int) -> list[Path]:
        settings = {"PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path)}
        command = [sys.executable, "-c", INDEX.format(number=int(number))]
        process = subprocess.run(
            command, env={**os.environ, **settings}, timeout=60, stderr=subprocess.PIPE, text=True
        )
        assert "Error" not in process.stderr
        return list(tmp_path.iterdir())

    assert bool(run(number)) == is_left
    assert run(0) == []
