"""Dense index: passages found by the similarity of embeddings that the user brings.

An embedding is a function from a list of texts to one vector per text, such as `model.encode` of
sentence-transformers. An index is a folder with the passages and their normalised vectors, which
are memory-mapped; a search multiplies all of them with the vector of the query.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

from gem_core.errors import ConfigError, MissingDependencyError
from gem_tools.corpus import read_corpus
from gem_tools.passage import Passage

__all__ = ["DENSE_FORMAT", "DenseIndex", "Embed", "embedding"]

Embed = Callable[[list[str]], Any]
"""Returns one vector per text: lists of numbers or an array."""
DENSE_FORMAT = "gem-dense-1"
_BATCH = 64


class DenseIndex:
    """An open dense index. Thread-safe if the embedding is."""

    def __init__(self, path: str | os.PathLike[str], embed: Embed | str) -> None:
        """Open the index in a folder; `embed` must be the function that built it."""
        self._numpy = _numpy()
        self.path, self.embed = Path(path), embedding(embed)
        try:
            about = json.loads((self.path / "index.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{self.path} is not an index ({error}); build one with DenseIndex.build"
            ) from None
        if about.get("format") != DENSE_FORMAT:
            raise ConfigError(
                f"{self.path} is an index of the format {about.get('format')!r}, "
                f"expected {DENSE_FORMAT!r}; open it without embed="
            )
        self.size, self.width = int(about["passages"]), int(about["width"])
        self._vectors = self._numpy.memmap(
            self.path / "vectors.bin", dtype="<f4", mode="r", shape=(self.size, self.width)
        )
        with open(self.path / "passages.jsonl", encoding="utf-8") as file:
            self._passages = [tuple(json.loads(line)) for line in file]

    @classmethod
    def build(
        cls,
        corpus: str | os.PathLike[str],
        out: str | os.PathLike[str],
        embed: Embed | str,
        *,
        words: int = 150,
    ) -> DenseIndex:
        """Embed a corpus, as in `gem_tools.corpus`, and open the new index."""
        numpy, function, target = _numpy(), embedding(embed), Path(out)
        if target.exists() and not (target / "index.json").exists():
            raise ConfigError(
                f"{target} exists and is not an index; choose another folder or remove it"
            )
        building = target.with_name(f"{target.name}.building-{os.getpid()}")
        shutil.rmtree(building, ignore_errors=True)
        building.mkdir(parents=True)
        try:
            count = width = 0
            passages = read_corpus(corpus, words=words)
            with (
                open(building / "passages.jsonl", "w", encoding="utf-8") as texts,
                open(building / "vectors.bin", "wb") as vectors,
            ):
                while batch := list(islice(passages, _BATCH)):
                    rows = _embedded(
                        numpy, function, [f"{p.title}\n{p.text}".strip() for p in batch]
                    )
                    if count and rows.shape[1] != width:
                        raise ConfigError(
                            f"the embedding returned vectors of {width} and of {rows.shape[1]} "
                            "numbers; all must have the same length"
                        )
                    width, count = rows.shape[1], count + len(batch)
                    vectors.write(rows.astype("<f4").tobytes())
                    for p in batch:
                        texts.write(json.dumps([p.id, p.title, p.text]) + "\n")
            if not count:
                raise ConfigError(f"the corpus {corpus} contains no text")
            about = {"format": DENSE_FORMAT, "passages": count, "width": width, "words": words}
            (building / "index.json").write_text(json.dumps(about), encoding="utf-8")
            shutil.rmtree(target, ignore_errors=True)
            building.rename(target)
        finally:
            shutil.rmtree(building, ignore_errors=True)
        return cls(target, embed)

    def search(self, query: str, k: int = 3) -> list[Passage]:
        """Return the k passages with the most similar vectors; ties keep the corpus order."""
        numpy = self._numpy
        vector = _embedded(numpy, self.embed, [query])[0]
        if len(vector) != self.width:
            raise ConfigError(
                f"the embedding returned {len(vector)} numbers, but {self.path} was built with "
                f"{self.width}; pass the same embedding"
            )
        scores = self._vectors @ vector.astype("<f4")
        best = numpy.argsort(-scores, kind="stable")[:k]
        found = [(self._passages[int(i)], float(scores[i])) for i in best]
        return [Passage(id, title, text, score) for (id, title, text), score in found]


def embedding(embed: Embed | str) -> Embed:
    """Return an embedding, imported if it is named as `module:function`."""
    if callable(embed):
        return embed
    module, separator, name = str(embed).partition(":")
    if not separator:
        raise ConfigError(f"embed must be a function or 'module:function'; got {embed!r}")
    try:
        function: Embed = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"cannot import the embedding {embed!r}: {error}") from error
    return function


def _embedded(numpy: Any, embed: Embed, texts: Sequence[str]) -> Any:
    """Return normalised vectors, one per text."""
    rows = numpy.asarray(embed(list(texts)), dtype="float32")
    if rows.ndim != 2 or len(rows) != len(texts) or not numpy.isfinite(rows).all():
        raise ConfigError(
            f"the embedding returned an array of the shape {rows.shape} for {len(texts)} texts; "
            "it must return one vector of finite numbers per text"
        )
    return rows / numpy.maximum(numpy.linalg.norm(rows, axis=1, keepdims=True), 1e-12)


def _numpy() -> Any:
    try:
        import numpy
    except ImportError as error:
        raise MissingDependencyError("the dense index", "search", str(error)) from error
    return numpy
