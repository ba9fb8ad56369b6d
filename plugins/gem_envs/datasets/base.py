"""Dataset rows: loaded once per process and shared by all environment instances.

| source                      | meaning                                                        |
|-----------------------------|----------------------------------------------------------------|
| `sample:NAME`               | a small sample shipped with gem                                |
| `package:NAME/path/to/file` | a file inside an installed package                             |
| `path/to/file`              | a local .jsonl, .json, .jsonl.gz or .parquet file              |
| `owner/name`                | a Hugging Face dataset, with `split` and, if needed, `subset`  |
"""

from __future__ import annotations

import gzip
import importlib
import importlib.util
import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from gem_core.errors import ConfigError, MissingDependencyError
from gem_envs.datasets.question import Question
from gem_envs.games.words import read_data

__all__ = ["DatasetQuestion", "Rows", "load_rows"]

_FILES = (".jsonl", ".json", ".jsonl.gz", ".parquet")


class Rows(Protocol):
    """Rows by index: a list, or a dataset that stays on disk."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Mapping[str, Any]: ...


_loaded: dict[tuple[str, str | None, str | None], Rows] = {}
_loading = threading.Lock()


def load_rows(source: str, split: str | None = None, subset: str | None = None) -> Rows:
    """Return the rows of a source, reading it at the first call.

    Raises `ConfigError` or `MissingDependencyError` if the source cannot be read.
    """
    if not isinstance(source, str) or not source:
        raise ConfigError(f"the dataset must be a string: {_forms()}, got {source!r}")
    key = (source, split, subset)
    with _loading:  # concurrent instances wait for one read instead of reading again
        if key not in _loaded:
            rows = _read(source, split, subset)
            if not len(rows):
                raise ConfigError(f"the dataset {source!r} has no rows")
            _loaded[key] = rows
        return _loaded[key]


class DatasetQuestion(Question):
    """Base class of the maths, question answering and code environments."""

    def __init__(
        self,
        dataset: str,
        split: str | None = None,
        subset: str | None = None,
        question_key: str = "question",
        answer_key: str = "answer",
        max_turns: int = 1,
    ) -> None:
        super().__init__(max_turns)
        self.source = (dataset, split, subset)
        self.question_key, self.answer_key = question_key, answer_key
        first = load_rows(*self.source)[0]
        for name in (question_key, answer_key):
            if name not in first:
                columns = ", ".join(sorted(first))
                raise ConfigError(
                    f"the dataset {dataset!r} has no column {name!r}; its columns: {columns}"
                )

    def count(self) -> int:
        return len(load_rows(*self.source))

    def pose(self, index: int) -> str:
        self.row: Mapping[str, Any] = dict(load_rows(*self.source)[index])
        return str(self.row[self.question_key])


def _forms() -> str:
    files = ", ".join(_FILES)
    return f"'sample:NAME', 'package:NAME/file', a file ({files}) or a Hugging Face dataset name"


def _read(source: str, split: str | None, subset: str | None) -> Rows:
    kind, _, rest = source.partition(":")
    if kind == "sample":
        try:
            return _json_lines(read_data(f"sample_{rest}.jsonl"), source)
        except FileNotFoundError:
            raise ConfigError(
                f"gem has no sample {rest!r}; it has: code, logic, math, qa, search"
            ) from None
    if kind == "package":
        return _read_file(_package_file(rest), source)
    if source.endswith(_FILES):
        path = Path(source).expanduser()
        if not path.is_file():
            raise ConfigError(
                f"the dataset file {source!r} does not exist (looked at {path.resolve()}); "
                f"pass {_forms()}"
            )
        return _read_file(path, source)
    return _read_hub(source, split, subset)


def _read_file(path: Path, source: str) -> Rows:
    if path.suffix == ".parquet":
        return _Table(path)
    if path.suffix == ".gz":
        with gzip.open(path, "rt", encoding="utf-8") as file:
            return _json_lines(file.read(), source)
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        rows = json.loads(text)
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise ConfigError(f"the dataset file {source!r} must contain a JSON list of objects")
        return rows
    return _json_lines(text, source)


def _json_lines(text: str, source: str) -> list[dict[str, Any]]:
    rows = []
    for number, line in enumerate(text.split("\n"), 1):  # JSON may contain U+2028
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ConfigError(
                f"line {number} of the dataset {source!r} is not JSON: {error}"
            ) from None
        if not isinstance(row, dict):
            raise ConfigError(
                f"line {number} of the dataset {source!r} must be a JSON object, got {line[:80]!r}"
            )
        rows.append(row)
    return rows


class _Table:
    """A Parquet file that converts only the requested rows to Python objects."""

    def __init__(self, path: Path) -> None:
        try:
            parquet: Any = importlib.import_module("pyarrow.parquet")
        except ImportError as error:
            raise MissingDependencyError(
                "reading a Parquet file", "datasets", str(error)
            ) from error
        self._table = parquet.read_table(path)

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        rows: Sequence[Mapping[str, Any]] = self._table.slice(index, 1).to_pylist()
        return rows[0]


def _package_file(name: str) -> Path:
    package, _, inner = name.partition("/")
    module = importlib.util.find_spec(package)
    if module is None or not module.submodule_search_locations:
        raise MissingDependencyError(
            f"the dataset {name!r}", package.replace("_", "-"), f"the package {package!r}"
        )
    path = Path(next(iter(module.submodule_search_locations))) / inner
    if not path.is_file():
        raise ConfigError(
            f"the installed package {package!r} has no file {inner!r}; try another version of it"
        )
    return path


def _read_hub(source: str, split: str | None, subset: str | None) -> Rows:
    try:
        datasets: Any = importlib.import_module("datasets")
    except ImportError as error:
        raise MissingDependencyError(
            f"the Hugging Face dataset {source!r}", "datasets", str(error)
        ) from error
    call = ", ".join(
        [
            repr(source),
            *([repr(subset)] if subset else []),
            *([f"split={split!r}"] if split else []),
        ]
    )
    try:
        loaded = datasets.load_dataset(source, subset, split=split)
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error)[:200]}"
        export = f"import datasets; datasets.load_dataset({call}).to_json('rows.jsonl')"
        raise ConfigError(
            f"could not load the Hugging Face dataset {source!r} ({reason}). "
            f'On a machine with network access run python -c "{export}" '
            "and pass dataset='rows.jsonl' here, "
            "or copy the Hugging Face cache to this machine."
        ) from error
    if isinstance(loaded, dict):
        if len(loaded) != 1:
            splits = ", ".join(sorted(loaded))
            raise ConfigError(
                f"the dataset {source!r} has several splits; pass split= one of: {splits}"
            )
        loaded = next(iter(loaded.values()))
    rows: Rows = loaded
    return rows
