"""Reasoning: the tasks of reasoning-gym, one question per episode, scored by the library.

The library's scorers need guards: some evaluate the answer as Python, some raise, some reward
nonsense. An answer that the scorer would evaluate must be a literal or a plain formula, and a
number must be finite. If a scorer raises, the score is 0 and `info["scorer_error"]` has the reason.
docs/reasoning.md lists the generators with unusual scores.
"""

from __future__ import annotations

import ast
import cmath
import importlib
import math
import operator
import random
import re
import sys
import threading
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from fractions import Fraction
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
"""Generators whose scorers call eval() on an answer that differs from the expected text."""
_FORMULA = frozenset(
    {
        "countdown",
        "intermediate_integration",
        "polynomial_multiplication",
        "simple_integration",
    }
)
"""Generators whose scorers pass the answer to sympy's parser, which calls eval() too."""
_EXACT = frozenset({"game_of_life_halting"})
"""Yes/no generators whose scorers give 1 for anything but the wrong word; gem compares exactly."""
_NUMBER = frozenset({"coin_flip"})
"""Generators whose scorers accept a prefix of the number (0 for 0.875); gem compares the value."""
_TOLERANCE = 1e-4
"""Tolerance of the library's coin_flip scorer. gem also limits the relative error to 1/1000."""


class Reasoning(Question):
    """A reasoning-gym task: the reward is the library's score from 0 to 1.

    Some generators give a little for any answer. As in GEM, the tasks are those of
    `create_dataset(name, size=500, seed=42)`, and the seed of an episode draws one of them.
    `config` is passed to the generator.
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
        self._dataset()  # validates the config

    def count(self) -> int:
        return self.size

    def pose(self, index: int) -> str:
        with _generating, _seeded_globals(zlib.crc32(f"{self.dataset_seed}/{index}".encode())):
            self.entry: dict[str, Any] = dict(self._dataset()[index])
        return str(self.entry["question"])

    def expert(self) -> Iterator[str]:
        """Yield the library's own answer."""
        answer = self.entry["answer"]
        if answer is None:
            raise PolicyError(
                f"reasoning-gym has a scorer but no answer for this task of {self.name}, "
                "so there is no expert baseline"
            )
        yield str(answer)

    def grade(self, answer: str) -> Grade:
        rejected = self._reject(answer)
        if rejected is not None:
            return rejected
        if self.name in _EXACT:
            return Grade(
                float(answer.strip().casefold() == str(self.entry["answer"]).strip().casefold())
            )
        if self.name == "puzzle24":
            return Grade(float(_makes_24(answer, self.entry["metadata"]["numbers"])))
        if self.name in _NUMBER:
            return Grade(float(_is_near(answer, str(self.entry["answer"]))))
        try:
            if self.name in _FORMULA:  # sympy may never return: run it in a killable process
                score = _scorer()(self.name, answer, self.entry, seconds=_SECONDS)
            else:
                score = float(self._dataset().score_answer(answer=answer, entry=self.entry))
        except ConfigError:  # the grader cannot start: every answer would score 0
            raise
        except Exception as error:  # noqa: BLE001 - a bug of the library must not fail the episode
            return Grade(0.0, info={"scorer_error": f"{type(error).__name__}: {str(error)[:200]}"})
        if not math.isfinite(score):
            return Grade(0.0, info={"scorer_error": f"the score is {score}"})
        return Grade(min(max(score, 0.0), 1.0))

    def _reject(self, answer: str) -> Grade | None:
        """Return a grade of 0 for an answer that must not reach the library's scorer."""
        if answer == self.entry["answer"]:
            return None
        reason = None
        if len(answer) > _LONGEST:
            reason = f"an answer of {len(answer)} characters is not scored"
        elif _is_not_finite(answer):
            reason = "an answer that is not a finite number is not scored"
        elif self.name in _LITERAL and not _is_literal(answer):
            reason = "the scorer evaluates the answer as Python; only literals are allowed"
        elif self.name in _FORMULA and not is_formula(answer):
            if not _is_python(answer):  # sympy would repair the text and evaluate the result
                return Grade(0.0)
            reason = "the scorer evaluates the answer as Python; only small formulas are allowed"
        return None if reason is None else Grade(0.0, info={"scorer_error": reason})

    def _dataset(self) -> Any:
        return _dataset(self.name, self.size, self.dataset_seed, repr(self.config), self.config)


_generating = threading.RLock()
"""Serialises the generators, which are not thread-safe."""
_datasets: dict[tuple[Any, ...], Any] = {}


def _dataset(
    name: str, size: int, seed: int, config_repr: str, config: tuple[tuple[str, Any], ...]
) -> Any:
    """Return the dataset, shared by all instances in a process; it generates tasks on demand."""
    try:
        with warnings.catch_warnings():  # a dependency emits a SyntaxWarning when compiled
            warnings.simplefilter("ignore", SyntaxWarning)
            import reasoning_gym

            _tame()
    except ImportError as error:
        raise MissingDependencyError("a reasoning-gym task", "reasoning", str(error)) from error
    key = (name, size, seed, config_repr)
    with _generating:
        if key not in _datasets:
            try:
                _datasets[key] = reasoning_gym.create_dataset(
                    name, size=size, seed=seed, **dict(config)
                )
            except (AssertionError, TypeError, ValueError) as error:
                raise ConfigError(
                    f"reasoning-gym rejects the config {dict(config)!r} of {name!r}: {error}"
                ) from error
        return _datasets[key]


_imported = 0
"""The number of modules at the end of the last `_tame`; there are thousands, and it visits all."""


def _tame() -> None:
    """Make the library's modules print nothing, and stop one generator from computing for long.

    Some modules are only imported by the generator that needs them.
    """
    global _imported
    if len(sys.modules) == _imported:
        return
    for name, module in list(sys.modules.items()):
        if name.startswith("reasoning_gym."):
            vars(module).setdefault("print", _print_nothing)
    rule: Any = importlib.import_module("reasoning_gym.cognition.number_sequences").PatternRule
    if not hasattr(rule, "gem_apply"):
        rule.gem_apply, rule.apply = rule.apply, _apply_rule
    _imported = len(sys.modules)


def _print_nothing(*_: object, **__: object) -> None:
    """Replace `print` in a module; redirecting stdout would also silence other threads."""


def _apply_rule(rule: Any, sequence: list[int], position: int) -> int:
    """Return the next number of a sequence, and end a sequence that the library will discard.

    The library computes all terms, of millions of digits, before it discards a sequence with a term
    over 1000. It handles an OverflowError in the same way.
    """
    term: int = rule.gem_apply(sequence, position)
    if abs(term) > 1000:
        raise OverflowError("the term is over 1000")
    return term


@contextmanager
def _seeded_globals(seed: int) -> Iterator[None]:
    """Seed the global random state, which a few generators use, and restore it afterwards."""
    numpy: Any = importlib.import_module("numpy")
    state, numpy_state = random.getstate(), numpy.random.get_state()
    random.seed(seed)
    numpy.random.seed(seed)
    try:
        yield
    finally:
        random.setstate(state)
        numpy.random.set_state(numpy_state)


def score(name: str, answer: str, entry: dict[str, Any]) -> float:
    """Return the library's score of an answer. Runs in a grader process."""
    return float(_dataset(name, 1, 0, "()", ()).score_answer(answer=answer, entry=entry))


def _scorer() -> Grader:
    return shared_grader("gem_envs.datasets.reasoning:score", "countdown", "", "{}")


def _is_near(text: str, gold: str) -> bool:
    """Whether a decimal or a fraction is close to the expected number."""
    numerator, _, denominator = text.replace(",", "").partition("/")
    try:
        value, expected = float(numerator) / float(denominator or 1), float(gold)
    except (ValueError, ZeroDivisionError):
        return False
    return abs(value - expected) <= min(_TOLERANCE, abs(expected) / 1000)


_ARITHMETIC: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def _makes_24(text: str, numbers: Sequence[int]) -> bool:
    """Whether a formula uses exactly these numbers and equals 24.

    The library accepts any four numbers in the range of the generator, and any value from 24 to 25.
    """
    used: list[int] = []

    def value(node: ast.expr) -> Fraction:
        if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            return _ARITHMETIC[type(node.op)](value(node.left), value(node.right))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -value(node.operand)
        if isinstance(node, ast.Constant) and type(node.value) is int:
            used.append(node.value)
            return Fraction(node.value)
        raise ValueError("not a formula of whole numbers")

    if len(text) > 200:
        return False
    try:
        equals_24 = value(ast.parse(text.strip(), mode="eval").body) == 24
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return False
    return equals_24 and sorted(used) == sorted(numbers)


def _is_not_finite(text: str) -> bool:
    """Whether a text consists of numbers and one of them is nan or infinite.

    nan is neither above nor below the expected answer, which some scorers take for equal.
    """
    # Whitespace separates numbers, but may also be inside a complex number.
    separate, joined = re.split(r"[\s,;()\[\]]+", text), re.sub(r"[\s()]", "", text)
    return _has_non_finite(separate) or _has_non_finite([joined])


def _has_non_finite(words: list[str]) -> bool:
    numbers = [_number(word) for word in words if word]
    return None not in numbers and not all(map(cmath.isfinite, filter(None, numbers)))


def _number(word: str) -> complex | None:
    # Python spells 2i as 2j. The unchanged word comes first, which keeps "inf" intact.
    for spelling in (word, word.lower().replace("i", "j")):
        with suppress(ValueError):
            return complex(spelling)
    return None


def _is_literal(text: str) -> bool:
    """Whether a text is a Python literal, a bare name or invalid Python, all safe to eval()."""
    try:
        ast.literal_eval(text.strip())
    except SyntaxError:
        return True  # eval() raises too, which the scorers handle
    except (ValueError, RecursionError, MemoryError):
        return text.strip().isidentifier()  # evaluating a name has no side effect
    return True


def _is_python(text: str) -> bool:
    try:
        ast.parse(text.strip(), mode="eval")
    except SyntaxError:
        return False
    except (ValueError, RecursionError, MemoryError):
        return True
    return True


_FUNCTIONS = "sin cos tan sec csc cot asin acos atan sinh cosh tanh exp log ln sqrt Abs"
_KNOWN = frozenset(f"{_FUNCTIONS} Rational Integer Float pi E C".split())
_NODES = (ast.Expression, ast.BinOp, ast.UnaryOp, ast.Call, ast.Name, ast.Constant, ast.Load)
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow, ast.UAdd, ast.USub)


def is_formula(text: str) -> bool:
    """Whether a text is a small formula of numbers, one-letter names and common functions."""
    if len(text) > 1000:
        return False
    try:
        nodes = list(ast.walk(ast.parse(text.strip(), mode="eval")))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    powers = [
        node for node in nodes if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow)
    ]
    numeric_powers = [
        power
        for power in powers
        if not any(isinstance(part, ast.Name) for part in ast.walk(power.left))
    ]
    return (
        all(map(_is_harmless, nodes))
        and all(map(_has_small_exponent, powers))
        and len(numeric_powers) <= 3
    )


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


def _has_small_exponent(power: ast.BinOp) -> bool:
    """Whether the exponent contains no power and no large number; 9**9**9 would never finish."""
    return not any(
        isinstance(part, ast.Pow)
        or (
            isinstance(part, ast.Constant)
            and isinstance(part.value, int | float)
            and abs(part.value) > 64
        )
        for part in ast.walk(power.right)
    )
