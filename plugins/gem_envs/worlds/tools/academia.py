"""Academia: questions about papers and authors, over a generated citation and author graph."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from gem_envs.worlds.names import person_names, place_names
from gem_envs.worlds.tools.task import Goal, ToolTask
from gem_envs.worlds.tools.toolbox import CallError, Toolbox, function

__all__ = ["Academia", "AcademiaTools"]

_PAPERS, _AUTHORS = 36, 20
_METHODS = ("Bayesian", "Contrastive", "Discrete", "Efficient", "Graph", "Hierarchical", "Sparse")
_TOPICS = ("Attention", "Clustering", "Control", "Parsing", "Planning", "Ranking", "Retrieval")
_FIELDS = ("Biology", "Dialogue", "Finance", "Robotics", "Speech", "Vision", "Weather")
_VENUES = ("ACML", "CIKM", "COLING", "ECAI", "ICDM", "IJCNN", "PAKDD", "WSDM")
_PAPER_NET, _AUTHOR_NET = "PaperNet", "AuthorNet"


class AcademiaTools(Toolbox):
    """Two graphs: papers with citations, and authors with their joint papers."""

    def __init__(self, papers: Mapping[str, Any], authors: Mapping[str, Any]) -> None:
        self.papers, self.authors = papers, authors
        self.loaded: set[str] = set()

    def joint_papers(self, first: str, second: str) -> list[str]:
        """Return the titles of the papers by both authors."""
        return [
            title
            for title, paper in self.papers.items()
            if first in paper["authors"] and second in paper["authors"]
        ]

    def collaborators(self, author: str) -> list[str]:
        """Return the authors with a joint paper, sorted."""
        return sorted(
            {
                other
                for paper in self.papers.values()
                if author in paper["authors"]
                for other in paper["authors"]
            }
            - {author}
        )

    def _need(self, graph: str) -> None:
        if graph not in self.loaded:
            raise CallError(f"{graph} is not loaded; call load{graph} first")

    def _known(self, node: str, nodes: Mapping[str, Any], kind: str) -> Any:
        if node not in nodes:
            raise CallError(f"there is no {kind} {node[:60]!r}")
        return nodes[node]

    @function("loads the graph of papers and citations", "loadPaperNet")
    def load_paper_net(self) -> str:
        self.loaded.add(_PAPER_NET)
        return "PaperNet is loaded."

    @function("loads the graph of authors and their joint papers", "loadAuthorNet")
    def load_author_net(self) -> str:
        self.loaded.add(_AUTHOR_NET)
        return "AuthorNet is loaded."

    @function("the neighbours of a node; graph is PaperNet or AuthorNet", "neighbourCheck")
    def neighbours(self, graph: str, node: str) -> list[str]:
        if graph not in (_PAPER_NET, _AUTHOR_NET):
            raise CallError("graph must be PaperNet or AuthorNet")
        self._need(graph)
        if graph == _PAPER_NET:
            return list(self._known(node, self.papers, "paper")["cites"])
        self._known(node, self.authors, "author")
        return self.collaborators(node)

    @function("year, venue, n_citation and keywords of a paper", "paperNodeCheck")
    def paper_node(self, node: str) -> dict[str, Any]:
        self._need(_PAPER_NET)
        paper = self._known(node, self.papers, "paper")
        return {key: paper[key] for key in ("year", "venue", "n_citation", "keywords")}

    @function("name and organisation of an author", "authorNodeCheck")
    def author_node(self, node: str) -> dict[str, Any]:
        self._need(_AUTHOR_NET)
        return {"name": node, **self._known(node, self.authors, "author")}

    @function("the joint papers of two authors, with years", "authorEdgeCheck")
    def author_edge(self, node1: str, node2: str) -> list[dict[str, Any]]:
        self._need(_AUTHOR_NET)
        for node in (node1, node2):
            self._known(node, self.authors, "author")
        return [
            {"title": title, "year": self.papers[title]["year"]}
            for title in self.joint_papers(node1, node2)
        ]

    @function("whether the first paper cites the second", "paperEdgeCheck")
    def paper_edge(self, node1: str, node2: str) -> dict[str, bool]:
        self._need(_PAPER_NET)
        for node in (node1, node2):
            self._known(node, self.papers, "paper")
        return {"cites": node2 in self.papers[node1]["cites"]}


# Goals.

_Calls = list[tuple[str, dict[str, Any]]]


def _fact_of_paper(tools: AcademiaTools, rng: random.Random) -> Goal:
    title = rng.choice(list(tools.papers))
    key, question = rng.choice(
        [
            ("year", "In which year was the paper {} published?"),
            ("venue", "At which venue was the paper {} published?"),
            ("n_citation", "How many citations does the paper {} have?"),
        ]
    )
    calls: _Calls = [("loadPaperNet", {}), ("paperNodeCheck", {"node": title})]
    return Goal(question.format(title), calls, tools.papers[title][key])


def _organisation(tools: AcademiaTools, rng: random.Random) -> Goal:
    author = rng.choice(list(tools.authors))
    calls: _Calls = [("loadAuthorNet", {}), ("authorNodeCheck", {"node": author})]
    answer = tools.authors[author]["organisation"]
    return Goal(f"At which organisation does {author} work?", calls, answer)


def _common_collaborators(tools: AcademiaTools, rng: random.Random) -> Goal:
    while True:
        first, second = rng.sample(list(tools.authors), 2)
        common = [a for a in tools.collaborators(first) if a in tools.collaborators(second)]
        if common:
            break
    calls: _Calls = [
        ("loadAuthorNet", {}),
        ("neighbourCheck", {"graph": _AUTHOR_NET, "node": first}),
        ("neighbourCheck", {"graph": _AUTHOR_NET, "node": second}),
    ]
    return Goal(
        f"Who has written papers with both {first} and {second}? Give a list of names.",
        calls,
        common,
    )


def _citations_of_pair(tools: AcademiaTools, rng: random.Random) -> Goal:
    author = rng.choice(list(tools.authors))
    other = rng.choice(tools.collaborators(author))
    titles = tools.joint_papers(author, other)
    calls: _Calls = [
        ("loadAuthorNet", {}),
        ("authorEdgeCheck", {"node1": author, "node2": other}),
        ("loadPaperNet", {}),
        *[("paperNodeCheck", {"node": title}) for title in titles],
    ]
    return Goal(
        f"How many citations do the joint papers of {author} and {other} have in total?",
        calls,
        sum(tools.papers[title]["n_citation"] for title in titles),
    )


def _most_cited_reference(tools: AcademiaTools, rng: random.Random) -> Goal:
    title = rng.choice([t for t, paper in tools.papers.items() if len(paper["cites"]) > 1])
    cited = tools.papers[title]["cites"]
    calls: _Calls = [
        ("loadPaperNet", {}),
        ("neighbourCheck", {"graph": _PAPER_NET, "node": title}),
        *[("paperNodeCheck", {"node": other}) for other in cited],
    ]
    best = max(cited, key=lambda other: int(tools.papers[other]["n_citation"]))
    return Goal(
        f"Which of the papers that {title} cites has the most citations? Give its title.",
        calls,
        best,
    )


class Academia(ToolTask):
    """A question about papers and authors; see `ToolTask`."""

    topic = "questions about papers and their authors"
    goals = (
        _fact_of_paper,
        _organisation,
        _common_collaborators,
        _citations_of_pair,
        _most_cited_reference,
    )

    def draw_toolbox(self, rng: random.Random) -> AcademiaTools:
        names = person_names(rng, _AUTHORS)
        places = place_names(rng, 12)
        authors = {name: {"organisation": f"University of {rng.choice(places)}"} for name in names}
        titles = [f"{a} {b} for {c}" for a in _METHODS for b in _TOPICS for c in _FIELDS]
        counts = rng.sample(range(3, 900), _PAPERS)  # different, so the most cited is one paper
        papers: dict[str, Any] = {}
        for number, title in enumerate(rng.sample(titles, _PAPERS)):
            # Consecutive pairs of authors share a paper, so that every author has a collaborator.
            pair = [names[number % _AUTHORS], names[(number + 1) % _AUTHORS]]
            others = [name for name in names if name not in pair]
            papers[title] = {
                "year": 1995 + rng.randint(0, 28),
                "venue": rng.choice(_VENUES),
                "n_citation": counts[number],
                "keywords": rng.sample(_TOPICS + _FIELDS, 3),
                "authors": [*pair, *rng.sample(others, rng.randint(0, 2))],
                "cites": rng.sample(sorted(papers), min(len(papers), rng.randint(0, 4))),
            }
        return AcademiaTools(papers, authors)
