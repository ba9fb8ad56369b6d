"""API pages: the public names of gem_core, and the modules that users and plugin authors import."""

from __future__ import annotations

import posixpath

from fields import cell, first_sentence, load

__all__ = ["pages"]

_PAGES = {
    "environments": (
        "Environments",
        "Write, register and make environments.",
        [
            "gem_core.env.base",
            "gem_core.env.registry",
            "gem_core.env.wrapper",
            "gem_core.env.wrapper_stack",
            "gem_core.env.mixture",
            "gem_core.env.action_format",
            "gem_core.wrappers.formats",
            "gem_core.wrappers.history",
            "gem_core.wrappers.limits",
            "gem_core.wrappers.episode_statistics",
            "gem_check.checker",
        ],
    ),
    "rollout": (
        "Rollout",
        "Play episodes with a policy.",
        ["gem_core.rollout.engine", "gem_core.rollout.limits", "gem_core.rollout.renderer"],
    ),
    "policies": (
        "Policies",
        "Choose actions: models, servers and baseline players.",
        [
            "gem_core.policies.base",
            "gem_core.policies.batching",
            "gem_core.policies.players",
            "gem_core.policies.scripted",
            "gem_core.policies.transformers_policy",
            "gem_core.policies.models",
            "gem_eval.models.openai.chat",
            "gem_eval.models.openai.tokens",
        ],
    ),
    "records": (
        "Records and types",
        "The data that flows from environments to trainers, also on [Records](../../records.md).",
        ["gem_core.types", "gem_core.records.file", "gem_core.records.serialize"],
    ),
    "training": (
        "Training",
        "Sequences, advantages, configuration and metrics.",
        [
            "gem_core.training.config",
            "gem_core.training.sequences",
            "gem_core.training.advantage",
            "gem_core.training.moments",
            "gem_core.training.horizon",
            "gem_core.training.metrics",
            "gem_core.training.metrics_file",
            "gem_core.training.warm_up",
        ],
    ),
    "plugins": (
        "Plugins and errors",
        "The plugin manager and the exceptions; [Hooks](../hooks.md) lists the hooks.",
        [
            "gem_core.plugins.hookspecs",
            "gem_core.plugins.manager",
            "gem_core.plugins.catalog",
            "gem_core.errors",
        ],
    ),
    "adapter_kit": (
        "Adapter kit",
        "What the adapters share; [Write an adapter](../../write_an_adapter.md) uses it.",
        [
            "gem_core.adapter_kit.declaration",
            "gem_core.adapter_kit.settings",
            "gem_core.adapter_kit.batch",
            "gem_core.adapter_kit.update_log",
            "gem_core.adapter_kit.patching",
            "gem_core.adapter_kit.exports",
            "gem_conformance.harness",
            "gem_conformance.kit",
        ],
    ),
    "tools": (
        "Tools",
        "Write and use tools; the guide is [Tools](../../tools.md).",
        [
            "gem_tools",
            "gem_tools.tool",
            "gem_tools.wrapper",
            "gem_tools.python",
            "gem_tools.search",
            "gem_tools.retrieval",
            "gem_tools.mcp",
        ],
    ),
    "evaluation": (
        "Evaluation",
        "Score models, draw curves; the guide is [Evaluate and look](../../evaluate.md).",
        [
            "gem_eval.evaluation.plan",
            "gem_eval.evaluation.run",
            "gem_eval.evaluation.score",
            "gem_eval.evaluation.statistics",
            "gem_eval.evaluation.compare",
            "gem_eval.curves",
            "gem_eval.tracker",
        ],
    ),
    "execution": (
        "Execution",
        "The guide is [Vector environments, processes and Ray](../../vector.md).",
        [
            "gem_execution.vector.factory",
            "gem_execution.vector.env",
            "gem_execution.vector.async_env",
            "gem_execution.process",
            "gem_execution.ray_hosts",
        ],
    ),
    "bridges": (
        "Bridges and servers",
        "Environments of other standards, and environments on servers.",
        [
            "gem_envs.gymnasium.from_gymnasium",
            "gem_envs.gymnasium.to_gymnasium",
            "gem_envs.remote.agentgym",
            "gem_envs.remote.openenv",
            "gem_envs.remote.server",
            "gem_envs.remote.protocols",
        ],
    ),
}


def pages() -> dict[str, str]:
    """Return the API pages, by their paths in the site."""
    written = {f"reference/api/{name}.md": _page(*page) for name, page in _PAGES.items()}
    return {"reference/api/index.md": _index(), **written}


def _page(title: str, sentence: str, modules: list[str]) -> str:
    parts = [f"# {title}\n\n{sentence}\n"]
    for module in modules:
        # A module that defines names shows them; a package only those it defines itself.
        options = "    options:\n      heading_level: 2\n      filters: public\n"
        parts.append(f"::: {module}\n{options}")
    return "\n".join(parts)


def _index() -> str:
    package = load("gem_core")
    exports = [str(each).strip("'\"") for each in package.exports or []]
    rows = [_row(name) for name in exports if name != "__version__"]
    head = (
        "# API\n\nImport these names from `gem_core`. The other pages document the modules that "
        "plugins and adapters use.\n\n| Name | Summary |\n|---|---|\n"
    )
    return head + "\n".join(rows) + "\n"


def _row(name: str) -> str:
    target = load("gem_core")[name].target_path
    module, _, _ = target.rpartition(".")
    page = next((page for page, entry in _PAGES.items() if module in entry[2]), None)
    assert page is not None, (
        f"gem_core.{name} is on no API page: add {module} to scripts/docs/api.py"
    )
    text = first_sentence(load(f"{module}:{name}"))
    return f"| [`{name}`]({posixpath.join('.', page)}.md#{target}) | {cell(text)} |"
