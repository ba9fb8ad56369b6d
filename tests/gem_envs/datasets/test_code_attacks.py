"""Attacks on code tasks: test code accepts only correct results, and honest programs still pass."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gem_core.env.registry import make

SQUARE = """
def check(candidate):
    assert candidate(3) == 9, 'f(3) should be 9'
    assert candidate(4) == 16
"""
ALWAYS = "lambda s, o=None: True"
FRAMES = """
import os, re, sys
def look(frame):
    while frame is not None:
        code = frame.f_code.co_consts, list(frame.f_locals.values()), list(frame.f_globals.values())
        for mark in re.findall('[0-9a-f]{32}', repr(code)):
            print()
            print(mark, flush=True)
        for name in ('check', 'checked', 'guarded'):
            if name in frame.f_globals:
                frame.f_globals[name] = lambda *a: True
        frame.f_builtins['exec'] = lambda *a: None
        frame = frame.f_back
look(sys._getframe(0))
"""

ATTACKS = {
    "replaces exec": """
import builtins; builtins.exec = lambda *a, **k: None
""",
    "replaces exec and defines f": """
import builtins; builtins.exec = lambda *a, **k: None
def f(x): return 0
""",
    "replaces many builtins": """
import builtins
for n in ('exec', 'print', 'compile', 'all', 'type', 'isinstance', 'zip', 'len'):
    setattr(builtins, n, lambda *a, **k: True)
def f(x): return 0
""",
    "returns an object equal to anything": f"""
class A: __eq__ = {ALWAYS}
def f(x): return A()
""",
    "returns an int equal to anything": f"""
class A(int):
    __eq__ = {ALWAYS}
    __hash__ = None
def f(x): return A(0)
""",
    "defines f as a class": f"""
class f:
    def __init__(self, x): pass
    __eq__ = {ALWAYS}
""",
    "names its class builtins.int": f"""
class A: __eq__ = {ALWAYS}
A.__module__ = 'builtins'
A.__name__ = 'int'
def f(x): return A()
""",
    "overrides __class__": f"""
class A:
    __eq__ = {ALWAYS}
    __class__ = int
def f(x): return A()
""",
    "returns a class with a metaclass": f"""
class M(type): __eq__ = {ALWAYS}
class A(metaclass=M): pass
def f(x): return A
""",
    "prints the marks in its frames and exits": f"""{FRAMES}
os._exit(0)
""",
    "prints the marks in its frames during a call and exits": f"""{FRAMES}
def f(x):
    look(sys._getframe(0))
    os._exit(0)
""",
    "changes frames before the tests": f"""{FRAMES}
def f(x): return 0
""",
    "changes frames during a call": f"""{FRAMES}
def f(x):
    look(sys._getframe(0))
    return 0
""",
    "changes the frames of a traceback": f"""{FRAMES}
def f(x):
    try: 1 / 0
    except Exception as e: look(e.__traceback__.tb_frame)
    return 0
""",
    "reads the expected result from the caller": """
import sys
def f(x):
    g = sys._getframe(0)
    while g.f_back: g = g.f_back
    return next((c for c in g.f_code.co_consts if c in (9, 16)), 0)
""",
    "prints the names of __main__": """
import __main__
def f(x): return 0
for k, v in list(vars(__main__).items()): print(k, v)
print(vars(__main__))
""",
    "reads the tests with an audit hook": """
import sys
found = []
sys.addaudithook(lambda event, args: event == 'exec' and found.append(args[0]))
def f(x):
    for code in found:
        for inner in code.co_consts:
            if x in getattr(inner, 'co_consts', ()):
                return inner.co_consts[inner.co_consts.index(x) + 1]
""",
    "finds the tests with gc": """
import gc
def f(x):
    for item in gc.get_objects():
        if getattr(item, '__name__', '') == 'check':
            constants = item.__code__.co_consts
            return constants[constants.index(x) + 1]
""",
    "finds the tests with gc, and changes the frame that refuses it": """
import gc
def f(x):
    try: gc.get_objects()
    except RuntimeError as error:
        frame = error.__traceback__.tb_next.tb_frame
        frame.f_globals.clear()
        frame.f_builtins.clear()
    for item in gc.get_objects():
        if getattr(item, '__name__', '') == 'check':
            constants = item.__code__.co_consts
            return constants[constants.index(x) + 1]
""",
    "reads the frames of other threads": """
import sys
def f(x):
    for frame in sys._current_frames().values():
        while frame is not None:
            constants = frame.f_code.co_consts
            if frame.f_code.co_name == 'check':
                return constants[constants.index(x) + 1]
            frame = frame.f_back
""",
    "reads the memory with ctypes": """
try: import ctypes
except ImportError: pass
else:
    def f(x): return x * x
""",
    "calls sys.exit in f": """
import sys
def f(x): sys.exit(0)
""",
    "calls sys.exit before the tests": """
import sys; sys.exit(0)
""",
    "calls os._exit in f": """
import os
def f(x): os._exit(0)
""",
    "registers an atexit handler": """
import atexit, os
def f(x): return 0
atexit.register(lambda: (print('passed'), os._exit(0)))
""",
    "replaces AssertionError": """
import builtins; builtins.AssertionError = type('E', (BaseException,), {})
def f(x): return 0
""",
    "defines check": """
def check(f): pass
def f(x): return 0
""",
    "exits its thread": """
import _thread
def f(x): _thread.exit()
""",
}

CORRECT = {
    "plain": """
def f(x): return x * x
""",
    "prints": """
def f(x):
    print('hm', end='')
    return x ** 2
print('begun')
""",
    "returns an enum member": """
from enum import IntEnum
class E(IntEnum):
    A = 9
    B = 16
def f(x): return E(x * x)
""",
    "defines f as a callable object": """
from functools import lru_cache, partial
f = lru_cache(None)(partial(pow, exp=2))
""",
    "recurses deeply": """
import sys
sys.setrecursionlimit(5000)
def g(n): return 0 if n == 0 else 1 + g(n - 1)
def f(x): return g(x * x + 1500) - 1500
""",
    "uses global state": """
from decimal import getcontext, Decimal
getcontext().prec = 50
seen = []
def f(x):
    seen.append(x)
    assert getcontext().prec == 50
    return Decimal(x) * x
""",
    "imports annotations from __future__": """from __future__ import annotations
def f(x: undefined) -> undefined: return x * x
""",
}


def task(tmp_path: Path, tests: str, entry: str | None = "f", **kwargs: Any) -> Any:
    path = tmp_path / "rows.jsonl"
    path.write_text(
        json.dumps({"problem": "?", "tests": tests, "entry": entry}) + "\n", encoding="utf-8"
    )
    env = make(
        "code:Sample-v0",
        dataset=str(path),
        entry_key="entry" if entry else None,
        test_seconds=10,
        **kwargs,
    )
    env.reset(seed=0)
    return env


def submit(env: Any, program: str) -> Any:
    return env.step(f"```python\n{program}\n```")


@pytest.mark.parametrize("isolation", ["auto", "partial"])
@pytest.mark.parametrize("name", ATTACKS)
def test_attack_on_the_tests_fails(name: str, isolation: str, tmp_path: Path) -> None:
    env = task(tmp_path, SQUARE, isolation=isolation)
    observation, reward, _, _, info = submit(env, ATTACKS[name])
    assert (reward, info["tests_passed"]) == (0.0, 0), observation


@pytest.mark.parametrize("isolation", ["auto", "partial"])
@pytest.mark.parametrize("name", CORRECT)
def test_correct_program_passes(name: str, isolation: str, tmp_path: Path) -> None:
    observation, reward, *_ = submit(task(tmp_path, SQUARE, isolation=isolation), CORRECT[name])
    assert reward == 1.0, observation


def test_result_cannot_define_its_own_difference_from_the_expected_value(tmp_path: Path) -> None:
    tests = """
def check(g):
    assert abs(g(1.25) - 0.25) < 1e-6
    assert g(2.5) in (0.5, 0.75)
"""
    assert submit(task(tmp_path, tests), "def f(x): return x % 1")[1] == 1.0
    overrides_all = f"""
class A:
    __sub__ = __rsub__ = lambda s, o: 0.0
    __lt__ = __eq__ = {ALWAYS}
    __abs__ = lambda s: s
def f(x): return A()
"""
    assert submit(task(tmp_path, tests), overrides_all)[1] == 0.0
    overrides_subtraction = """
class A:
    __sub__ = lambda s, o: 0.0
    __hash__ = lambda s: hash(0.5)
def f(x): return A()
"""
    tests = "def check(g):\n    assert abs(g(1.25) - 0.25) < 1e-6\n"
    assert submit(task(tmp_path, tests), overrides_subtraction)[1] == 0.0


PROGRAMS_AND_TESTS = {
    "argument changed in place": (
        "def f(x): x.sort()",
        """
a = [3, 1, 2]
f(a)
assert a == [1, 2, 3]
""",
    ),
    "identity": (
        "def f(x): return x",
        """
a = []
assert f(a) is a
""",
    ),
    "function as an argument": (
        """
def f(g, x): return [g(y) for y in x]
def h(x): return -x
""",
        "assert f(lambda y: h(y) + 1, [1, 2]) == f(h, [0, 1])",
    ),
    "generator": (
        """
def f(n):
    for i in range(n): yield i
""",
        """
assert list(f(3)) == [0, 1, 2]
assert sum(x for x in f(3)) == 3
""",
    ),
    "expected exception": (
        """
def f(x):
    if x < 0: raise ValueError('no')
    return x
""",
        """
try:
    f(-1)
except ValueError as e:
    assert str(e) == 'no'
else:
    assert False
""",
    ),
    "exception class of the program": (
        """
class E(Exception): pass
def f():
    raise E
""",
        """
try:
    f()
    assert 0
except E: pass
""",
    ),
    "Counter": (
        """
from collections import Counter
def f(x): return Counter(x)
""",
        """
assert f('aab') == {'a': 2, 'b': 1}
assert 1 < f('aab')['a'] <= 2
""",
    ),
    "namedtuple": (
        """
from collections import namedtuple
P = namedtuple('P', 'x y')
def f(): return [P(1, 2)]
""",
        """
assert f() == [(1, 2)] != [(2, 2)]
assert f()[0].x == 1
""",
    ),
    "class with operators": (
        """
class V:
    def __init__(s, *x): s.x = x
    def __eq__(s, o): return s.x == o.x
    def __mul__(s, k): return V(*(k * a for a in s.x))
    def __contains__(s, y): return y in s.x
    def __len__(s): return len(s.x)
    def __sub__(s, o): return V(s.x[0] - o.x[0])
""",
        """
assert V(1, 2) * 3 == V(3, 6) != V(1)
assert 2 in V(1, 2) and 3 not in V(1)
assert len(V(1, 2)) == 2
assert V(3) - V(1) == V(2)
assert isinstance(V(1), V) and type(V(1)) == V
assert [V(1)] == [V(1)] and V(1) in [V(1)]
""",
    ),
    "class in the tests": (
        "def f(x): return x",
        """
class T:
    def __init__(self, x):
        super().__init__()
        self.x = x
    def run(self): return f(self.x)
assert T(4).run() == 4
assert f'{f(1)!r}' == '1'
""",
    ),
    "coroutine": (
        "async def f(): return 3",
        """
import asyncio
assert asyncio.run(f()) == 3
""",
    ),
    "many calls": (
        "def f(n): return n + 1",
        """
import random
for _ in range(2000):
    n = random.randint(0, 99)
    assert f(n) == n + 1
""",
    ),
    "redirected stdout": (
        "def f(): print('hello')",
        r"""
import contextlib, io
out = io.StringIO()
with contextlib.redirect_stdout(out):
    f()
assert out.getvalue() == 'hello\n'
""",
    ),
    "nested containers": (
        "def f(): return {1: {2}, 'k': (1.5, None)}",
        """
assert f() == {1: {2}, 'k': (1.5, None)}
assert f().keys() == {1, 'k'}
""",
    ),
}


@pytest.mark.parametrize("name", PROGRAMS_AND_TESTS)
def test_test_code_can_use_ordinary_python(name: str, tmp_path: Path) -> None:
    program, tests = PROGRAMS_AND_TESTS[name]
    observation, reward, *_ = submit(task(tmp_path, tests, None), program)
    assert reward == 1.0, observation


@pytest.mark.parametrize(
    ("tests", "error_type"),
    [
        (SQUARE, "AssertionError"),
        ("def check(f):\n    assert f(3) == 9, 'first\\nit should be 9'\n", "AssertionError"),
        ("def check(f):\n    if f(3) != 9: raise ValueError('9 is right')\n", "ValueError"),
        ("def check(f):\n    {9: 1}[f(3) + 4]\n", "KeyError"),
        ("def check(f):\n    assert f(3) = 9", "SyntaxError"),
    ],
)
def test_feedback_names_the_error_type_but_not_the_expected_result(
    tests: str, error_type: str, tmp_path: Path
) -> None:
    observation, reward, *_ = submit(task(tmp_path, tests, max_turns=2), "def f(x): return 0")
    assert reward == 0.0
    assert f"fails: {error_type}." in observation
    assert "9" not in observation
