"""Write the table of docs/settings.md: what each trainer's settings do, as the tests prove it.

    python scripts/settings_table.py

A test of an adapter that covers a setting has the mark `@pytest.mark.setting(NAME, STATE)`, with
"works" or "rejected" as the state; its folder names the trainer. `ROWS` has the cells without a
test. The script reads the marks from the source, so no framework must be installed.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "settings.md"
TRAINERS = {
    "trl": "TRL",
    "verl": "verl",
    "openrlhf": "OpenRLHF",
    "oat": "oat",
    "rl2": "RL2",
    "skyrl": "SkyRL",
    "tinker": "Tinker",
}
_BLOCK = re.compile(r"(?<=<!-- settings -->\n).*?(?=<!-- end -->)", re.DOTALL)


@dataclass(frozen=True)
class Row:
    """One setting: its name in marks, what it means, and the trainers without it."""

    name: str
    meaning: str
    not_offered: str = ""
    """The trainers that have no such setting, separated by spaces."""


@dataclass(frozen=True)
class Mark:
    """One mark: the trainer and setting it is about, and the test that has it."""

    trainer: str
    setting: str
    state: str
    test: str
    source: str


ROWS = (
    Row("Token-level ratios", "each trainer's default loss"),
    Row(
        "GSPO",
        "sequence-level ratios, which average the advantages of a sequence: turns with +1 and -1 "
        "cancel. verl's `gspo` is the token form, which does not",
        not_offered="oat rl2",
    ),
    Row(
        "One advantage per sequence",
        "losses such as `GMPOTrainer`, `geo_mean`, `cross_entropy`",
        not_offered="openrlhf oat rl2",
    ),
    Row(
        "Liger",
        "`use_liger_kernel`, `use_liger`. TRL deprecates it, and the loss of TRL 1.10 then takes "
        "one advantage per sequence; elsewhere it replaces layers of the model; the tests run them "
        "in Triton's interpreter, on the CPU",
        not_offered="oat skyrl tinker",
    ),
    Row(
        "Estimator settings",
        "`scale_rewards`, `norm_adv_by_std_in_grpo`, `--algo.advantage.*`, `whiten_adv`, `adv.*`, "
        "`grpo_norm_by_std`: set `GemConfig(advantage=..., gamma=...)`",
        not_offered="tinker",
    ),
    Row(
        "Groups of one episode",
        "`grpo` and `rloo` compare the episodes of one seed; TRL itself needs two",
        not_offered="trl",
    ),
    Row("Critic", '`GemConfig(advantage="gae")`: one value per turn'),
    Row(
        "Trainer's own rewards",
        "reward functions, reward managers, overlong shaping: use a wrapper around the environment",
        not_offered="rl2 tinker",
    ),
    Row("KL in the reward", "use the KL term of the loss", not_offered="trl tinker"),
    Row(
        "DAPO filter",
        "drops groups with equal returns, OpenRLHF's with a mean of 0 or 1; SkyRL's counts a "
        "failed episode as 0",
        not_offered="trl oat tinker",
    ),
    Row(
        "Entropy",
        "an entropy term in the loss, and TRL's `top_entropy_quantile`",
        not_offered="oat tinker",
    ),
    Row(
        "Importance correction",
        "one ratio of trainer and sampler per token. For a ratio per sequence see below",
    ),
    Row(
        "Trainer's own turn limits and tools",
        "`tools=`, `multi_turn.*`, `rollout.max_turns`: set `GemConfig(horizon=..., tools=[...])`",
        not_offered="openrlhf oat tinker",
    ),
    Row(
        "Trainer's own template settings",
        "`chat_template_kwargs`, `apply_chat_template_kwargs`, `--data.apply_chat_template`, "
        "`--data.input_template`: set `GemConfig(template_kwargs=...)`",
        not_offered="rl2 tinker",
    ),
    Row("Rewritten history", "several sequences per episode"),
    Row(
        "Template mode",
        '`GemConfig(history="template")`: earlier turns as the chat template writes them, which '
        "may remove thinking",
    ),
    Row(
        "Processes",
        '`GemConfig(execution="process")`: each environment in its own process; `"ray"` puts them '
        "on a Ray cluster",
    ),
    Row(
        "LoRA",
        "train an adapter of the model",
        not_offered="rl2",
    ),
    Row("Data parallel", "several training processes", not_offered="tinker"),
    Row(
        "Packing",
        "micro-batches by tokens, or several sequences without padding in one row; OpenRLHF's and "
        "SkyRL's need flash-attn",
        not_offered="trl oat tinker",
    ),
    Row("Evaluation", "episodes on held-out seeds during training"),
    Row("Resume", "seeds, horizon, record and metrics continue after a checkpoint"),
    Row(
        "Failing runs",
        "a run in which every episode fails stops after `max_failed_updates`, with the traceback",
    ),
    Row(
        "Failed episodes",
        "become padding, which the loss and all statistics exclude (exceptions below); Tinker "
        "drops them",
    ),
    Row("Growing horizon", '`GemConfig(horizon="4,7,10@80")`'),
    Row(
        "Asynchronous training",
        "oat's multi-turn learner ignores its own setting; RL2's main branch has partial rollouts; "
        "Tinker is one step off",
        not_offered="trl rl2",
    ),
    Row("`batch_end`", "the plugin event, once per training batch; in TRL once per rank"),
)


def marks() -> Iterator[Mark]:
    """Yield the marks of the adapters' tests: on a test, or on a parameter of it."""
    for path in sorted((ROOT / "tests" / "adapters").glob("*/test_*.py")):
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        named = {
            ast.unparse(node.target if isinstance(node, ast.AnnAssign) else node.targets[0]): node
            for node in tree.body
            if isinstance(node, (ast.Assign, ast.AnnAssign))
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                source = ast.get_source_segment(text, node) or ""
                for setting, state in _settings(node.decorator_list, named):
                    yield Mark(path.parent.name, setting, state, node.name, source)


def _settings(nodes: Sequence[ast.AST], named: Mapping[str, ast.AST]) -> Iterator[tuple[str, str]]:
    """Yield (name, state) of the marks in decorators, and in constants that they name."""
    for root in nodes:
        for node in ast.walk(root):
            if isinstance(node, ast.Name) and node.id in named:
                yield from _settings([named[node.id]], {})
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.setting":
                setting, state = map(ast.literal_eval, node.args)
                yield setting, state


def cells() -> dict[tuple[str, str], str]:
    """Return the state of each (setting, trainer); a contradiction or a gap raises `ValueError`."""
    states = defaultdict(set)
    for mark in marks():
        states[mark.setting, mark.trainer].add(mark.state)
    for row in ROWS:
        for trainer in row.not_offered.split():
            states[row.name, trainer].add("not offered")
    known = {(row.name, trainer) for row in ROWS for trainer in TRAINERS}
    if unknown := set(states) - known:
        raise ValueError(f"marks of settings or trainers without a row: {sorted(unknown)}")
    if wrong := {cell: states[cell] for cell in known if len(states[cell]) != 1}:
        raise ValueError(f"cells with no state or several: {wrong}")
    return {cell: states[cell].pop() for cell in known}


def table() -> str:
    """Return the table."""
    states = cells()
    lines = [
        f"| Setting | Meaning | {' | '.join(TRAINERS.values())} |",
        "|---|---|" + "---|" * len(TRAINERS),
    ]
    for row in ROWS:
        of_row = " | ".join(states[row.name, trainer] for trainer in TRAINERS)
        lines.append(f"| {row.name} | {row.meaning} | {of_row} |")
    return "\n".join(lines)


def page(text: str) -> str:
    """Return the page with the table of the present marks."""
    return _BLOCK.sub(lambda _: f"\n{table()}\n\n", text)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")
