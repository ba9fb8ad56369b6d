"""Tests of the adapters' source: all have the same files, names, order and headings."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from project import ROOT

ADAPTERS = {
    name: ROOT / "adapters" / f"gem_{name}"
    for name in ("oat", "openrlhf", "rl2", "skyrl", "tinker", "trl", "verl")
}
ADAPTERS["toy"] = ROOT / "examples" / "adapter_template" / "gem_toy"

NAMES = {
    "__init__.py": ("ADAPTER", "register_adapters", "__getattr__"),
    "config.py": ("GemConfig", "check_settings"),
    "convert.py": ("to_batch",),
    "rollout.py": ("EnginePolicy", "play"),
    "trainer.py": ("train", "put_advantages", "check_batch"),
    "conformance.py": ("harness",),
}
"""The files of an adapter, and the names that each defines at its top level, in order."""

FIELDS = [
    "name", "package", "distribution", "import_name", "extra", "versions", "python",
    "platforms", "needs", "install", "capabilities", "status", "summary", "gpu",
]  # fmt: skip
"""The fields of an adapter's declaration, in order."""
HEADINGS = ["What it does", "Install", "Use", "Settings", "Limits", "What was run"]


@pytest.fixture(params=ADAPTERS, ids=str)
def adapter(request: pytest.FixtureRequest) -> Path:
    return ADAPTERS[request.param]


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def top_level_names(module: ast.Module) -> Iterator[str]:
    for node in module.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))


def top_level(module: ast.Module, name: str) -> ast.AST:
    return next(node for node in module.body if getattr(node, "name", None) == name)


def imported(module: ast.Module) -> set[str]:
    """Return the top-level packages that a module imports anywhere."""
    names: list[str] = []
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.append(node.module or "")
    return {name.partition(".")[0] for name in names}


@pytest.mark.parametrize("file", NAMES)
def test_every_file_defines_the_shared_names_in_order(adapter: Path, file: str) -> None:
    assert (adapter / file).is_file()
    defined = [name for name in top_level_names(parse(adapter / file)) if name in NAMES[file]]
    assert defined == list(NAMES[file])


def test_no_adapter_has_an_advantage_module(adapter: Path) -> None:
    assert not (adapter / "advantage.py").exists()


@pytest.mark.parametrize("file", NAMES)
def test_all_is_sorted_and_contains_the_shared_names(adapter: Path, file: str) -> None:
    (listed,) = [
        ast.literal_eval(node.value)
        for node in parse(adapter / file).body
        if isinstance(node, ast.Assign)
        and [getattr(t, "id", "") for t in node.targets] == ["__all__"]
    ]
    # ruff's order: constants, classes, functions
    order = sorted(listed, key=lambda name: (not name.isupper(), not name[0].isupper(), name))
    assert listed == order
    expected = [name for name in NAMES[file] if name != "__getattr__"]
    assert set(expected) <= set(listed)


def test_declaration_has_the_same_fields_in_the_same_order(adapter: Path) -> None:
    module = parse(adapter / "__init__.py")
    (declared,) = [
        node.value
        for node in module.body
        if isinstance(node, ast.Assign)
        and [getattr(t, "id", "") for t in node.targets] == ["ADAPTER"]
    ]
    assert isinstance(declared, ast.Call) and ast.unparse(declared.func) == "Adapter"
    assert [keyword.arg for keyword in declared.keywords] == FIELDS
    assert "lazy_exports(ADAPTER, {" in ast.unparse(module)
    exported = {
        node.value
        for node in ast.walk(module)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert {"GemConfig", "train"} <= exported


def test_config_is_a_training_config_with_task_of(adapter: Path) -> None:
    module = parse(adapter / "config.py")
    config = top_level(module, "GemConfig")
    assert isinstance(config, ast.ClassDef)
    assert [ast.unparse(base) for base in config.bases] == ["TrainingConfig"]
    assert "task_of" in {node.name for node in config.body if isinstance(node, ast.FunctionDef)}
    modules = {node.module for node in ast.walk(module) if isinstance(node, ast.ImportFrom)}
    later = {f"{adapter.name}.{name}" for name in ("rollout", "trainer", "conformance")}
    assert not modules & later, "config.py must not import modules that import it"


def test_check_settings_rejects_all_settings_at_once(adapter: Path) -> None:
    check = top_level(parse(adapter / "config.py"), "check_settings")
    assert isinstance(check, ast.FunctionDef)
    assert [argument.arg for argument in check.args.args][:2] == ["settings", "config"]
    calls = [
        node
        for node in ast.walk(check)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "reject"
    ]
    assert len(calls) == 1


def test_train_takes_the_config_and_the_settings(adapter: Path) -> None:
    train = top_level(parse(adapter / "trainer.py"), "train")
    assert isinstance(train, ast.FunctionDef)
    names = [argument.arg for argument in train.args.args]
    assert names[:2] == ["config", "settings"]
    assert len(train.args.defaults) == len(names) - 2, "all other arguments need defaults"


def test_every_batch_is_checked(adapter: Path) -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in adapter.glob("*.py"))
    assert "check_sequence(" in text
    assert len(re.findall(r"\bcheck_batch\(", text)) >= 2, "expected a definition and a call"
    assert re.search(r"\bUpdateLog(\.of)?\(", text)
    assert "TrainerRollout(" in text


def test_numbers_per_turn_become_numbers_per_token_in_one_place(adapter: Path) -> None:
    """Either `convert.py` has the alignment of the trainer, or it is that of the kit's batches."""
    own = "per_token" in top_level_names(parse(adapter / "convert.py"))
    text = "".join(path.read_text(encoding="utf-8") for path in adapter.glob("*.py"))
    assert own == ("played.per_token(" not in text)


def test_conformance_defines_one_harness_of_the_kit(adapter: Path) -> None:
    classes = [
        node for node in parse(adapter / "conformance.py").body if isinstance(node, ast.ClassDef)
    ]
    harnesses = [
        node for node in classes if "Harness" in [ast.unparse(base) for base in node.bases]
    ]
    assert len(harnesses) == 1 and harnesses[0].name.endswith("Harness")


def test_adapter_imports_no_gem_package_but_the_core(adapter: Path) -> None:
    others = {path.name for path in ADAPTERS.values()} - {adapter.name}
    for path in adapter.rglob("*.py"):
        gems = {name for name in imported(parse(path)) if name.startswith("gem_")}
        kit = {"gem_conformance"} if path.name == "conformance.py" else set()
        assert gems <= {"gem_core", adapter.name, *kit}, (
            f"{path.name} imports {sorted(gems & others) or sorted(gems)}"
        )


def test_readme_has_the_shared_headings(adapter: Path) -> None:
    text = (adapter / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    (title,) = re.findall(r"^# gem for (.+)$", text, flags=re.MULTILINE)
    headings = re.findall(r"^## (.+)$", text, flags=re.MULTILINE)
    assert headings == HEADINGS, "other headings must be of level 3"
    assert f"\n### Where {title} calls gem\n" in text
