"""Catalogue page: one entry per family of environments, with an episode played at build time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fields import cell, first_sentence, load
from transcripts import PROGRAMS, play

__all__ = ["page"]

_SEED = 1
_GROUPS = {
    "Games": (("game",), "games.md"),
    "Questions": (("rg", "math", "qa", "logic", "code", "eval"), "datasets.md"),
    "Scenarios": (("babyai", "sciworld", "textcraft", "textworld"), "scenarios.md"),
    "Worlds": (
        ("maze", "household", "sql", "tool", "webshop", "wiki", "miniwob"),
        "worlds.md",
    ),
    "Agent tasks": (("search", "terminal", "web", "mcp"), "agents.md"),
    "Servers": (("agentgym", "openenv"), "agents.md"),
}
_GUIDES = {"rg": "reasoning.md"}
_TITLES = {
    "agentgym": "AgentGym servers",
    "babyai": "BabyAI",
    "code": "Code",
    "eval": "Evaluation sets",
    "household": "Household",
    "logic": "Logic",
    "math": "Maths",
    "maze": "Maze",
    "mcp": "MCP servers",
    "miniwob": "MiniWoB++",
    "openenv": "OpenEnv servers",
    "qa": "Question answering",
    "rg": "reasoning-gym",
    "sciworld": "SciWorld",
    "search": "Deep search",
    "sql": "SQL",
    "terminal": "Terminal",
    "textcraft": "TextCraft",
    "textworld": "TextWorld",
    "tool": "Tool tasks",
    "web": "Web navigation",
    "webshop": "WebShop",
    "wiki": "WikiGame",
}
_SAMPLES = {
    "babyai": "babyai:GoToRedBall-v0",
    "household": "household:HeatAndPlace-v0",
    "miniwob": "miniwob:click-button",
    "rg": "rg:chain_sum",
    "sciworld": "sciworld:find-plant",
    "sql": "sql:Query-v0-moderate",
    "terminal": "terminal:SumColumn-v0",
    "textcraft": "textcraft:TextCraft-v0-depth1",
    "textworld": "textworld:CoinCollector-v0",
    "tool": "tool:Todo-v0",
    "web": "web:Shop-v0",
}
"""The id that is played for a family, where it is not the easy variant or the shipped sample."""
_HEAD = f"""# Catalogue

One entry per family of environments. [All ids](environments.md) lists every id. The transcripts
were played when this page was built, with seed {_SEED}, by the expert of the environment or, if
it has none, with random actions: `gem-rl eval ID --model expert` plays the same. Long texts and
episodes are cut.
"""


def page() -> str:
    """Return the page."""
    from gem_core.env.registry import environments

    families: dict[str, list[Any]] = {}
    for spec in environments.all().values():
        families.setdefault(_family(spec.id), []).append(spec)
    parts = [_HEAD]
    for group, (namespaces, guide) in _GROUPS.items():
        parts.append(f"\n## {group}\n")
        names = [name for name in families if name.partition(":")[0] in namespaces]
        for name in sorted(
            names, key=lambda name: (namespaces.index(name.partition(":")[0]), name)
        ):
            parts.append(_entry(name, families.pop(name), guide))
    assert not families, f"add {sorted(families)} to a group of scripts/docs/catalogue.py"
    return "\n".join(parts)


def _family(env_id: str) -> str:
    """Return the family of an id: the game, or the namespace."""
    namespace, _, name = env_id.partition(":")
    return f"game:{name.partition('-')[0]}" if namespace == "game" else namespace


def _entry(family: str, specs: Sequence[Any], guide: str) -> str:
    namespace, _, game = family.partition(":")
    title = game or _TITLES[namespace]
    guide = _GUIDES.get(namespace, guide)
    modules = list(dict.fromkeys(str(spec.entry_point) for spec in specs))
    rules = "\n\n".join(_rules(path) for path in (modules if len(modules) == 1 else []))
    rules = rules or "Held-out sets for `gem-rl eval`, graded like the training sets of their kind."
    rows = {
        "Ids": _ids(specs),
        "Reward": "; ".join(dict.fromkeys(spec.reward for spec in specs)),
        "Turns": _turns(specs),
        "Data": _data(specs),
        "Needs": _needs(namespace, specs),
        "Guide": f"[{guide.partition('.')[0].capitalize()}]({guide})",
    }
    table = "\n".join(f"| {name} | {cell(value)} |" for name, value in rows.items())
    transcript = _transcript(namespace, specs)
    return f"\n### {title}\n\n{rules}\n\n| | |\n|---|---|\n{table}\n\n{transcript}\n"


def _rules(entry_point: str) -> str:
    """Return the first line of an environment's module, then the docstring of its class."""
    module = entry_point.partition(":")[0]
    name, _, noun = first_sentence(load(module)).partition(": ")
    line = noun or name
    return f"{line[0].upper()}{line[1:]}\n\n{load(entry_point).docstring.value}"


def _needs(namespace: str, specs: Sequence[Any]) -> str:
    extras = list(dict.fromkeys(spec.extra for spec in specs if spec.extra))
    needs = [f"`pip install '.[{extra}]'`" for extra in extras]
    if namespace in PROGRAMS:
        needs.append(f"the program `{PROGRAMS[namespace]}`")
    if not needs:
        return "no extra"
    return " and ".join(needs) if len(extras) < 2 else ", or ".join(needs) + ", by id"


def _ids(specs: Sequence[Any], shown: int = 6) -> str:
    ids = [f"`{spec.id}`" for spec in specs]
    more = f" and {len(ids) - shown} more" if len(ids) > shown + 1 else ""
    return " ".join(ids[:shown] if more else ids) + more


def _turns(specs: Sequence[Any]) -> str:
    by_turns: dict[Any, list[str]] = {}
    for spec in specs:
        by_turns.setdefault(spec.turns, []).append(spec.id)
    if len(by_turns) == 1:
        (turns,) = by_turns
        return "no limit of its own" if turns is None else str(turns)
    numbers = [turns for turns in by_turns if turns is not None]
    if len(specs) > 6:
        return f"{min(numbers)} to {max(numbers)}, by id"
    prefix = min((spec.id for spec in specs), key=len)
    labels = {
        turns: " ".join(f"`{each.removeprefix(prefix)}`" for each in ids if each != prefix)
        for turns, ids in by_turns.items()
    }
    return ", ".join(
        ("drawn at reset" if turns is None else str(turns)) + (f" ({label})" if label else "")
        for turns, label in labels.items()
    )


def _data(specs: Sequence[Any]) -> str:
    offline = sum(spec.offline for spec in specs)
    sources = list(dict.fromkeys(spec.data for spec in specs))
    shown = "; ".join(sources[:4]) + (f"; {len(sources) - 4} more" if len(sources) > 5 else "")
    if offline == len(specs):
        return f"{shown}; offline"
    return f"{shown}; {offline} of {len(specs)} ids run offline"


def _transcript(namespace: str, specs: Sequence[Any]) -> str:
    offline = [spec.id for spec in specs if spec.offline]
    if not offline:
        needs = (
            "a server" if any("server" in spec.data for spec in specs) else "a dataset from the hub"
        )
        return f"No transcript: this family needs {needs}."
    likely = [each for each in offline if each.endswith(("-easy", ":Sample-v0"))]
    env_id = _SAMPLES.get(namespace) or (likely or offline)[0]
    transcript = play(env_id, _SEED)
    if transcript.missing:
        return f"No transcript: this build lacked {transcript.missing}."
    text = "\n".join(f"    {line}".rstrip() for line in transcript.text.splitlines())
    title = f"`{env_id}`, seed {_SEED}, {transcript.player} player"
    return f'??? example "{title}"\n\n    ```text\n{text}\n    ```'
