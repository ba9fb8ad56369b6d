"""WikiGame environment: get from one page to another by following links."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gem_core.arguments import whole_number
from gem_core.env.base import ResetResult, StepResult
from gem_core.errors import ConfigError
from gem_envs.games.base import Game
from gem_envs.worlds.wiki.link_graph import link_graph, python_docs

__all__ = ["WikiGame"]

_BACK = "back"
_MOST_DRAWS = 10_000


class WikiGame(Game):
    """A walk along links; the reward is 1 for the target page.

    `corpus` is a folder of HTML pages; None is Python's documentation (Debian's `python3-doc`).
    The seed draws target and start; the shortest path between them has `min_distance` to
    `max_distance` links. A page shows its first 40 links. `back` returns to the previous page.
    """

    action_example = "the title of a linked page"

    def __init__(
        self,
        corpus: str | None = None,
        min_distance: int = 2,
        max_distance: int = 3,
        max_turns: int = 15,
    ) -> None:
        self.min_distance = whole_number("min_distance", min_distance, 1)
        self.max_distance = whole_number("max_distance", max_distance, self.min_distance)
        self.max_turns = whole_number("max_turns", max_turns, 1)
        self.graph = link_graph(corpus or python_docs())
        self.corpus_name = self.graph.name

    def on_reset(self, options: Mapping[str, Any]) -> ResetResult:
        titles = sorted(self.graph.pages)
        for _ in range(_MOST_DRAWS):
            target = self.rng.choice(titles)
            far = self.graph.distances_to(target)
            starts = [t for t in titles if self.min_distance <= far.get(t, 0) <= self.max_distance]
            if starts:
                break
        else:
            raise ConfigError(
                f"no two pages are {self.min_distance} to {self.max_distance} links apart; "
                "choose smaller distances or another corpus"
            )
        self.target, self.path = target, [self.rng.choice(starts)]
        return (
            "Get from one page to another by following links. An action is the title of a page "
            f"that the current page links to, or {_BACK!r} for the page before. "
            f"You have {self.max_turns} turns.\n\nTarget: {target}\n"
            f"About the target: {self.graph.pages[target].summary}\n\n{self._page()}",
            {"distance": far[self.path[0]]},
        )

    def on_step(self, action: str) -> StepResult:
        text = " ".join(action.split()).lower()
        if text == _BACK and len(self.path) > 1:
            self.path.pop()
            return self.carry_on(self._page())
        links = self.graph.pages[self.path[-1]].links
        title = next((link for link in links if link.lower() == text), None)
        if title is None:
            return self.carry_on(f"{action.strip()[:60]!r} is not a link here.\n{self._page()}")
        self.path.append(title)
        if title == self.target:
            return self.won(f"You have reached {title} in {self.turn + 1} turns.")
        return self.carry_on(self._page())

    def _page(self) -> str:
        page = self.graph.pages[self.path[-1]]
        links = "\n".join(f"- {link}" for link in page.links) or "(no links)"
        return f"Page: {page.title}\n{page.summary}\n\nLinks:\n{links}"

    def sample_action(self) -> str:
        links = self.graph.pages[self.path[-1]].links
        return self.action_rng.choice(links) if links else _BACK

    def expert(self) -> Iterator[str]:
        """Follow a shortest path."""
        far = self.graph.distances_to(self.target)
        while True:
            links = self.graph.pages[self.path[-1]].links
            yield min(links, key=lambda link: far.get(link, len(far)))
