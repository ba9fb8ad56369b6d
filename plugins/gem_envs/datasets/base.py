"""Dataset: the rows an environment asks its questions from, loaded once and shared by all instances in a process.

| source                     | what is read                                                                             |
|----------------------------|------------------------------------------------------------------------------------------|
| `sample:NAME`              | a small sample that comes with gem                                                       |
| `package:NAME/path/to/file`| a file of an installed package                                                           |
| `path/to/file`             | a local file that ends in .jsonl, .json, .jsonl.gz or .parquet                           |
| `owner/name`               | a Hugging Face data set, with `split` (and `subset`, where it has configurations)        |
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
    """Rows by number: a list, or a data set that stays on disk."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Mapping[str, Any]: ...


_loaded: dict[tuple[str, str | None, str | None], Rows] = {}
_loading = threading.Lock()


def load_rows(source: str, split: str | None = None, subset: str | None = None) -> Rows:
    """The rows of a source, read at the first call. An error says what to install, download or point to."""
    if not isinstance(source, str) or not source:
        raise ConfigError(f"a data set is named by a string, {_forms()}; given: {source!r}")
    key = (source, split, subset)
    with _loading:  # a hundred instances made at once read one file once
        if key not in _loaded:
            rows = _read(source, split, subset)
            if not len(rows):
                raise ConfigError(f"the data set {source!r} has no rows")
            _loaded[key] = rows
        return _loaded[key]


class DatasetQuestion(Question):
    """A question from a data set: the base of the maths, question answering and code environments."""

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
                raise ConfigError(
                    f"the data set {dataset!r} has no column {name!r}; its columns: {', '.join(sorted(first))}"
                )

    def count(self) -> int:
        return len(load_rows(*self.source))

    def pose(self, index: int) -> str:
        self.row: Mapping[str, Any] = dict(load_rows(*self.source)[index])
        return str(self.row[self.question_key])


def _forms() -> str:
    return f"'sample:NAME', 'package:NAME/file', a file ({', '.join(_FILES)}) or the name of a Hugging Face data set"


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
                f"the data set file {source!r} does not exist (looked at {path.resolve()}); give {_forms()}"
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
            raise ConfigError(f"the data set file {source!r} must hold a JSON list of objects")
        return rows
    return _json_lines(text, source)


def _json_lines(text: str, source: str) -> list[dict[str, Any]]:
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ConfigError(
                f"line {number} of the data set {source!r} is not JSON: {error}"
            ) from None
        if not isinstance(row, dict):
            raise ConfigError(
                f"line {number} of the data set {source!r} must be a JSON object; it is: {line[:80]!r}"
            )
        rows.append(row)
    return rows


class _Table:
    """A Parquet file; only the rows that are asked for become Python objects."""

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
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise MissingDependencyError(
            f"the data set {name!r}", package.replace("_", "-"), f"the package {package!r}"
        )
    path = Path(next(iter(found.submodule_search_locations))) / inner
    if not path.is_file():
        raise ConfigError(
            f"the installed package {package!r} has no file {inner!r}; another version of it may"
        )
    return path


def _read_hub(source: str, split: str | None, subset: str | None) -> Rows:
    try:
        datasets: Any = importlib.import_module("datasets")
    except ImportError as error:
        raise MissingDependencyError(
            f"the Hugging Face data set {source!r}", "datasets", str(error)
        ) from error
    call = ", ".join(
        [
            repr(source),
            *([repr(subset)] if subset else []),
            *([f"split={split!r}"] if split else []),
        ]
    )
    try:
        found = datasets.load_dataset(source, subset, split=split)
    except Exception as error:
        raise ConfigError(
            f"the Hugging Face data set {source!r} could not be loaded ({type(error).__name__}: {str(error)[:200]}). Where there "
            f"is a network, run python -c \"import datasets; datasets.load_dataset({call}).to_json('rows.jsonl')\" and give "
            "dataset='rows.jsonl' here, or copy the Hugging Face cache to this machine."
        ) from error
    if isinstance(found, dict):
        if len(found) != 1:
            raise ConfigError(
                f"the data set {source!r} has several splits; give split= one of: {', '.join(sorted(found))}"
            )
        found = next(iter(found.values()))
    rows: Rows = found
    return rows
