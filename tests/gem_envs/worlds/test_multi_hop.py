"""Tests of multi-hop search: chains of texts, outdated texts, and retrieval over HTTP."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from gem_core.__main__ import main
from gem_core.errors import ConfigError
from gem_envs.worlds.deep_search.documents import corpus_index, documents
from gem_envs.worlds.deep_search.encyclopedia import RELATIONS, encyclopedia
from gem_envs.worlds.deep_search.multi_hop import MultiHopSearch
from gem_tools.search import Index


def test_corpus_has_more_than_twenty_thousand_texts() -> None:
    texts = list(documents(encyclopedia()))
    assert len(texts) > 20_000
    assert len({text.id for text in texts}) == len(texts)
    outdated = [text for text in texts if text.title.endswith("yearbook)")]
    assert len(outdated) > 3000


@pytest.mark.parametrize("hops", range(2, 7))
def test_every_hop_needs_a_text_that_a_search_finds(hops: int) -> None:
    env: Any = MultiHopSearch(hops, hops, max_turns=2 * hops + 4)
    for seed in range(4):
        env.reset(seed=seed)
        names = [*env.row["titles"], env.row["answer"]]
        assert len(set(names)) == hops + 1
        assert names[0] in env.row["question"]
        assert not any(name in env.row["question"] for name in names[1:-1] if len(name) > 8)
        for name, following in pairwise(names):
            observation, *_ = env.step(f"<search>{name}</search>")
            assert f"] {name}\n" in observation
            assert following in observation


def test_outdated_text_disagrees_with_the_article() -> None:
    world = encyclopedia()
    changing = {relation.name for relation in RELATIONS if relation.changes}
    outdated = [entity for entity in world.entities.values() if entity.outdated]
    for entity in outdated:
        assert set(entity.outdated) <= changing
        for name, (year, value) in entity.outdated.items():
            assert value != entity.facts[name]
            assert year < entity.years[name]


def test_command_writes_the_corpus_for_other_search_engines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = list(documents(encyclopedia()))
    for form, last in (
        ("gem", {"id": texts[-1].id, "title": texts[-1].title, "text": texts[-1].text}),
        ("search-r1", {"id": texts[-1].id, "contents": f'"{texts[-1].title}"\n{texts[-1].text}'}),
    ):
        file = tmp_path / form / "corpus.jsonl"
        assert main(["corpus", str(file), "--format", form]) == 0
        assert f"{len(texts)} texts in" in capsys.readouterr().out
        lines = file.read_text(encoding="utf-8").splitlines()
        assert len(lines) == len(texts) and json.loads(lines[-1]) == last
    assert main(["corpus", str(file)]) == 2
    assert "pass --overwrite" in capsys.readouterr().err
    assert main(["corpus", str(file), "--overwrite", "--seed", "-1"]) == 2
    assert "--seed must be 0 or more" in capsys.readouterr().err


@pytest.fixture
def server() -> Iterator[str]:
    """Serve the corpus with Search-R1's protocol."""
    index = Index.open(corpus_index())

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            found = index.search(body["queries"][0], body["topk"])
            result = [
                {"document": {"id": p.id, "title": p.title, "text": p.text}, "score": p.score}
                for p in found
            ]
            reply = json.dumps({"result": [result]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, *_: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}/retrieve"
        http.shutdown()
        thread.join()


def test_retrieval_server_gives_the_same_episode(server: str) -> None:
    local, remote = MultiHopSearch(3, 3), MultiHopSearch(3, 3, corpus=server)
    assert local.deterministic and not remote.deterministic
    assert local.reset(seed=5) == remote.reset(seed=5)
    for action in list(local.expert()):
        assert local.step(action)[:4] == remote.step(action)[:4]
    assert local.ended and remote.ended


def test_fewer_hops_than_the_minimum_are_rejected() -> None:
    with pytest.raises(ConfigError, match="max_hops"):
        MultiHopSearch(min_hops=3, max_hops=2)
