"""Reasoning: the tasks of reasoning-gym, one question an episode, scored by the library.

Its scorers are not trusted with everything: some evaluate the answer as Python, some raise, some pay for what is no answer. An
answer that would be evaluated must be a literal or a plain formula, one that is no finite number is not scored, and whatever a
scorer raises is a score of 0 with `info["scorer_error"]`. docs/reasoning.md has the table of generators whose scores are odd.
"""

from __future__ import annotations

import ast
import cmath
import importlib
import math
import random
import re
import threading
import warnings
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from gem_core.arguments import whole_number
from gem_core.errors import ConfigError, MissingDependencyError, PolicyError, UnknownNameError
from gem_envs.datasets.grader import Grader, shared_grader
from gem_envs.datasets.question import Grade, Question
from gem_envs.datasets.reasoning_names import NAMES, NONDETERMINISTIC

__all__ = ["Reasoning", "is_formula"]

_LONGEST = 20_000
_SECONDS = 10.0
_LITERAL = frozenset({"binary_matrix", "n_queens", "spiral_matrix", "string_insertion"})
"""Their scorers call eval() on an answer that is not the right one as it stands."""
_FORMULA = frozenset(
    {
        "countdown",
        "intermediate_integration",
        "polynomial_multiplication",
        "puzzle24",
        "simple_integration",
    }
)
"""Their scorers hand the answer to sympy's parser, which calls eval() too."""
_EXACT = frozenset({"game_of_life_halting"})
"""Their scorers pay 1.0 for any answer that is not the wrong one of two; here it must be the right one."""
_NUMBER = frozenset({"coin_flip"})
"""Their scorers pay for a beginning of the right number, so that 0 is worth 1.0 beside 0.875; here it must be that number."""
_TOLERANCE = 1e-4
"""What the library's scorer of coin_flip allows; here also no more than a thousandth, since some probabilities are smaller."""


class Reasoning(Question):
    """The library's score, from 0 to 1; some generators pay a little for any answer.

    As in the reference the tasks are those of `create_dataset(name, size=500, seed=42)`; the seed of an episode draws one of
    them. `config` goes to the generator.
    """

    def __init__(
        self,
        name: str,
        size: int = 500,
        seed: int = 42,
        config: Mapping[str, Any] | None = None,
        max_turns: int = 1,
    ) -> None:
        super().__init__(max_turns)
        if name not in NAMES:
            raise UnknownNameError("reasoning-gym generator", str(name), NAMES)
        self.name, self.size = name, whole_number("size", size, 1)
        self.dataset_seed = whole_number("seed", seed, 0)
        self.config = tuple(sorted((config or {}).items()))
        if name in NONDETERMINISTIC:
            self.deterministic = False  # type: ignore[misc]
        self._dataset()  # a bad config is refused now

    def count(self) -> int:
        return self.size

    def pose(self, index: int) -> str:
        with _generating, _own_chances(zlib.crc32(f"{self.dataset_seed}/{index}".encode())):
            self.entry: dict[str, Any] = dict(self._dataset()[index])
        return str(self.entry["question"])

    def expert(self) -> Iterator[str]:
        """The library's own answer."""
        answer = self.entry["answer"]
        if answer is None:
            raise PolicyError(
                f"reasoning-gym gives no answer to this task of {self.name}, only a scorer; nobody knows the ceiling"
            )
        yield str(answer)

    def grade(self, answer: str) -> Grade:
        unscored = self._unscored(answer)
        if unscored is not None:
            return unscored
        if self.name in _EXACT:
            return Grade(
                float(answer.strip().casefold() == str(self.entry["answer"]).strip().casefold())
            )
        if self.name in _NUMBER:
            return Grade(float(_is_near(answer, str(self.entry["answer"]))))
        try:
            if self.name in _FORMULA:  # sympy may need for ever, in a process that can be stopped
                score = _scorer()(self.name, answer, self.entry, seconds=_SECONDS)
            else:
                score = float(self._dataset().score_answer(answer=answer, entry=self.entry))
        except ConfigError:  # no process to score in: every answer would be worth 0
            raise
        except Exception as error:  # noqa: BLE001 - a scorer that raises is the library's fault, and the episode goes on
            return Grade(0.0, info={"scorer_error": f"{type(error).__name__}: {str(error)[:200]}"})
        if not math.isfinite(score):
            return Grade(0.0, info={"scorer_error": f"the score is {score}"})
        return Grade(min(max(score, 0.0), 1.0))

    def _unscored(self, answer: str) -> Grade | None:
        """The grade of an answer that is not given to the library's scorer."""
        if answer == self.entry["answer"]:
            return None
        if len(answer) > _LONGEST:
            return Grade(
                0.0, info={"scorer_error": f"an answer of {len(answer)} characters is not scored"}
            )
        if _is_not_finite(answer):
            return Grade(
                0.0, info={"scorer_error": "an answer that is no finite number is not scored"}
            )
        if self.name in _LITERAL and not _is_literal(answer):
            return Grade(
                0.0,
                info={
                    "scorer_error": "the scorer would evaluate the answer as Python; it gets literals only"
                },
            )
        if self.name in _FORMULA and not is_formula(answer):
            if not _is_python(
                answer
            ):  # sympy would mend some of it and evaluate that; it is simply no formula
                return Grade(0.0)
            return Grade(
                0.0,
                info={
                    "scorer_error": "the scorer would evaluate the answer as Python; it gets small formulas only"
                },
            )
        return None

    def _dataset(self) -> Any:
        return _dataset(self.name, self.size, self.dataset_seed, repr(self.config), self.config)


_generating = threading.RLock()
"""The generators are not written for threads."""
_datasets: dict[tuple[Any, ...], Any] = {}


def _dataset(
    name: str, size: int, seed: int, shown: str, config: tuple[tuple[str, Any], ...]
) -> Any:
    """The data set, one for all instances in a process; its tasks are generated when they are asked for."""
    try:
        with (
            warnings.catch_warnings()
        ):  # one of its packages has a SyntaxWarning, shown until it is compiled
            warnings.simplefilter("ignore", SyntaxWarning)
            import reasoning_gym
    except ImportError as error:
        raise MissingDependencyError(
            "the tasks of reasoning-gym", "reasoning", str(error)
        ) from error
    key = (name, size, seed, shown)
    with _generating:
        if key not in _datasets:
            try:
                _datasets[key] = reasoning_gym.create_dataset(
                    name, size=size, seed=seed, **dict(config)
                )
            except (AssertionError, TypeError, ValueError) as error:
                raise ConfigError(
                    f"reasoning-gym refuses {dict(config)!r} for {name!r}: {error}"
                ) from error
        return _datasets[key]


@contextmanager
def _own_chances(seed: int) -> Iterator[None]:
    """A few generators draw from, or seed, the global random state: they get one that the task fixes, and it is put back."""
    numpy: Any = importlib.import_module("numpy")
    kept, numpy_kept = random.getstate(), numpy.random.get_state()
    random.seed(seed)
    numpy.random.seed(seed)
    try:
        yield
    finally:
        random.setstate(kept)
        numpy.random.set_state(numpy_kept)


def score(name: str, answer: str, entry: dict[str, Any]) -> float:
    """The library's score of an answer, for a grader process."""
    return float(_dataset(name, 1, 0, "()", ()).score_answer(answer=answer, entry=entry))


def _scorer() -> Grader:
    return shared_grader("gem_envs.datasets.reasoning:score", "countdown", "", "{}")


def _is_near(text: str, gold: str) -> bool:
    """Whether a text is the number, as a decimal or a fraction of two."""
    above, _, below = text.replace(",", "").partition("/")
    try:
        value, right = float(above) / float(below or 1), float(gold)
    except (ValueError, ZeroDivisionError):
        return False
    return abs(value - right) <= min(_TOLERANCE, abs(right) / 1000)


def _is_not_finite(text: str) -> bool:
    """Whether a text is nothing but numbers of which one is nan or infinite: nan is neither more nor less than the right answer,
    which some scorers take for right."""
    # Blanks may stand between numbers, and inside of a complex one.
    return any(
        map(_has_no_end, ([*re.split(r"[\s,;()\[\]]+", text)], [re.sub(r"[\s()]", "", text)]))
    )


def _has_no_end(words: list[str]) -> bool:
    numbers = [_number(word) for word in words if word]
    return None not in numbers and not all(map(cmath.isfinite, filter(None, numbers)))


def _number(word: str) -> complex | None:
    for written in (
        word,
        word.lower().replace("i", "j"),
    ):  # 2i is what people write for Python's 2j; inf stays inf
        with suppress(ValueError):
            return complex(written)
    return None


def _is_literal(text: str) -> bool:
    """Whether a text is a Python literal, or nothing that Python could run at all."""
    try:
        ast.literal_eval(text.strip())
    except SyntaxError:
        return True  # eval() fails on it as well, which the scorers expect
    except (ValueError, RecursionError, MemoryError):
        return (
            text.strip().isidentifier()
        )  # a word that happens to be a name; naming something does nothing
    return True


def _is_python(text: str) -> bool:
    try:
        ast.parse(text.strip(), mode="eval")
    except SyntaxError:
        return False
    except (ValueError, RecursionError, MemoryError):
        return True
    return True


_NAMES = "sin cos tan sec csc cot asin acos atan sinh cosh tanh exp log ln sqrt Abs Rational Integer Float pi E C"
_KNOWN = frozenset(_NAMES.split())
_NODES = (ast.Expression, ast.BinOp, ast.UnaryOp, ast.Call, ast.Name, ast.Constant, ast.Load)
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow, ast.UAdd, ast.USub)


def is_formula(text: str) -> bool:
    """Whether a text is arithmetic over numbers, one-letter names and usual functions, small enough to be worked out."""
    if len(text) > 1000:
        return False
    try:
        nodes = list(ast.walk(ast.parse(text.strip(), mode="eval")))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    powers = [
        node for node in nodes if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow)
    ]
    below_numbers = [
        power
        for power in powers
        if not any(isinstance(part, ast.Name) for part in ast.walk(power.left))
    ]
    return all(map(_is_harmless, nodes)) and all(map(_is_small, powers)) and len(below_numbers) <= 3


def _is_harmless(node: ast.AST) -> bool:
    if isinstance(node, ast.operator | ast.unaryop):
        return isinstance(node, _OPERATORS)
    if isinstance(node, ast.Name):
        return len(node.id) == 1 or node.id in _KNOWN
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and not node.keywords
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int | float) and abs(node.value) <= 1e15
    return isinstance(node, _NODES)


def _is_small(power: ast.BinOp) -> bool:
    """9**9**9 would never be worked out: an exponent has no power in it, and no large number."""
    return not any(
        isinstance(part, ast.Pow)
        or (
            isinstance(part, ast.Constant)
            and isinstance(part.value, int | float)
            and abs(part.value) > 64
        )
        for part in ast.walk(power.right)
    )
