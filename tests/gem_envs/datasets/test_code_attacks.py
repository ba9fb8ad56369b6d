"""Code attacks: a program does not pass the text of a test by anything but the right results, and honest programs still do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gem_core.env.registry import make

SQUARE = "def check(candidate):\n    assert candidate(3) == 9, 'f(3) should be 9'\n    assert candidate(4) == 16\n"
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
    "exec is replaced": "import builtins; builtins.exec = lambda *a, **k: None",
    "exec and f": "import builtins; builtins.exec = lambda *a, **k: None\ndef f(x): return 0",
    "all builtins are replaced": "import builtins\nfor n in ('exec', 'print', 'compile', 'all', 'type', 'isinstance', 'zip', 'len'):\n"
    "    setattr(builtins, n, lambda *a, **k: True)\ndef f(x): return 0",
    "equal to anything": f"class A: __eq__ = {ALWAYS}\ndef f(x): return A()",
    "a number equal to anything": f"class A(int):\n    __eq__ = {ALWAYS}\n    __hash__ = None\ndef f(x): return A(0)",
    "the function is the class": f"class f:\n    def __init__(self, x): pass\n    __eq__ = {ALWAYS}",
    "another class says so": f"class A: __eq__ = {ALWAYS}\nA.__module__ = 'builtins'\nA.__name__ = 'int'\ndef f(x): return A()",
    "its class is a lie": f"class A:\n    __eq__ = {ALWAYS}\n    __class__ = int\ndef f(x): return A()",
    "the class has a class": f"class M(type): __eq__ = {ALWAYS}\nclass A(metaclass=M): pass\ndef f(x): return A",
    "the mark of the caller": f"{FRAMES}\nos._exit(0)",
    "the mark of the caller, in a call": f"{FRAMES}\ndef f(x):\n    look(sys._getframe(0))\n    os._exit(0)",
    "frames before the tests": f"{FRAMES}\ndef f(x): return 0",
    "frames in a call": f"{FRAMES}\ndef f(x):\n    look(sys._getframe(0))\n    return 0",
    "frames of a traceback": FRAMES
    + "\ndef f(x):\n    try: 1 / 0\n    except Exception as e: look(e.__traceback__.tb_frame)\n    return 0",
    "the expected number of the caller": "import sys\ndef f(x):\n    g = sys._getframe(0)\n    while g.f_back: g = g.f_back\n"
    "    return next((c for c in g.f_code.co_consts if c in (9, 16)), 0)",
    "names of main": "import __main__\ndef f(x): return 0\nfor k, v in list(vars(__main__).items()): print(k, v)\nprint(vars(__main__))",
    "sys.exit": "import sys\ndef f(x): sys.exit(0)",
    "sys.exit before": "import sys; sys.exit(0)",
    "os._exit": "import os\ndef f(x): os._exit(0)",
    "at exit": "import atexit, os\ndef f(x): return 0\natexit.register(lambda: (print('passed'), os._exit(0)))",
    "AssertionError is nothing": "import builtins; builtins.AssertionError = type('E', (BaseException,), {})\ndef f(x): return 0",
    "check is defined": "def check(f): pass\ndef f(x): return 0",
    "a thread ends": "import _thread\ndef f(x): _thread.exit()",
}

RIGHT = {
    "plain": "def f(x): return x * x",
    "prints": "def f(x):\n    print('hm', end='')\n    return x ** 2\nprint('begun')",
    "a subclass": "from enum import IntEnum\nclass E(IntEnum):\n    A = 9\n    B = 16\ndef f(x): return E(x * x)",
    "a callable": "from functools import lru_cache, partial\nf = lru_cache(None)(partial(pow, exp=2))",
    "recursive": "import sys\nsys.setrecursionlimit(5000)\ndef g(n): return 0 if n == 0 else 1 + g(n - 1)\ndef f(x): return g(x * x + 1500) - 1500",
    "global state": "from decimal import getcontext, Decimal\ngetcontext().prec = 50\nseen = []\ndef f(x):\n    seen.append(x)\n"
    "    assert getcontext().prec == 50\n    return Decimal(x) * x",
    "future": "from __future__ import annotations\ndef f(x: nothing) -> nobody: return x * x",
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


def play(env: Any, program: str) -> Any:
    return env.step(f"```python\n{program}\n```")


@pytest.mark.parametrize("isolation", ["auto", "partial"])
@pytest.mark.parametrize("name", ATTACKS)
def test_a_program_does_not_pass_by_reaching_for_the_tests(
    name: str, isolation: str, tmp_path: Path
) -> None:
    said, reward, _, _, info = play(task(tmp_path, SQUARE, isolation=isolation), ATTACKS[name])
    assert (reward, info["tests_passed"]) == (0.0, 0), said


@pytest.mark.parametrize("isolation", ["auto", "partial"])
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_program_passes_however_it_is_written(
    name: str, isolation: str, tmp_path: Path
) -> None:
    said, reward, *_ = play(task(tmp_path, SQUARE, isolation=isolation), RIGHT[name])
    assert reward == 1.0, said


def test_a_difference_is_not_measured_by_the_program(tmp_path: Path) -> None:
    tests = (
        "def check(g):\n    assert abs(g(1.25) - 0.25) < 1e-6\n    assert g(2.5) in (0.5, 0.75)\n"
    )
    assert play(task(tmp_path, tests), "def f(x): return x % 1")[1] == 1.0
    near = f"class A:\n    __sub__ = __rsub__ = lambda s, o: 0.0\n    __lt__ = __eq__ = {ALWAYS}\n    __abs__ = lambda s: s\ndef f(x): return A()"
    assert play(task(tmp_path, tests), near)[1] == 0.0
    nearer = "class A:\n    __sub__ = lambda s, o: 0.0\n    __hash__ = lambda s: hash(0.5)\ndef f(x): return A()"
    assert (
        play(task(tmp_path, "def check(g):\n    assert abs(g(1.25) - 0.25) < 1e-6\n"), nearer)[1]
        == 0.0
    )


@pytest.mark.parametrize(
    ("program", "tests"),
    [
        ("def f(x): x.sort()", "a = [3, 1, 2]\nf(a)\nassert a == [1, 2, 3]"),
        ("def f(x): return x", "a = []\nassert f(a) is a"),
        ("def f(g, x): return [g(y) for y in x]\ndef h(x): return -x", "assert f(lambda y: h(y) + 1, [1, 2]) == f(h, [0, 1])"),
        ("def f(n):\n    for i in range(n): yield i", "assert list(f(3)) == [0, 1, 2]\nassert sum(x for x in f(3)) == 3"),
        ("def f(x):\n    if x < 0: raise ValueError('no')\n    return x", "try:\n    f(-1)\nexcept ValueError as e:\n    assert str(e) == 'no'\nelse:\n    assert False"),
        ("class E(Exception): pass\ndef f():\n    raise E", "try:\n    f()\n    assert 0\nexcept E: pass"),
        ("from collections import Counter\ndef f(x): return Counter(x)", "assert f('aab') == {'a': 2, 'b': 1}\nassert 1 < f('aab')['a'] <= 2"),
        ("from collections import namedtuple\nP = namedtuple('P', 'x y')\ndef f(): return [P(1, 2)]", "assert f() == [(1, 2)] != [(2, 2)]\nassert f()[0].x == 1"),
        (
            "class V:\n    def __init__(s, *x): s.x = x\n    def __eq__(s, o): return s.x == o.x\n    def __mul__(s, k): return V(*(k * a for a in s.x))\n"
            "    def __contains__(s, y): return y in s.x\n    def __len__(s): return len(s.x)\n    def __sub__(s, o): return V(s.x[0] - o.x[0])",
            "assert V(1, 2) * 3 == V(3, 6) != V(1)\nassert 2 in V(1, 2) and 3 not in V(1)\nassert len(V(1, 2)) == 2\n"
            "assert V(3) - V(1) == V(2)\nassert isinstance(V(1), V) and type(V(1)) == V\nassert [V(1)] == [V(1)] and V(1) in [V(1)]",
        ),
        ("def f(x): return x", "class T:\n    def __init__(self, x):\n        super().__init__()\n        self.x = x\n    def run(self): return f(self.x)\nassert T(4).run() == 4\nassert f'{f(1)!r}' == '1'"),
        ("async def f(): return 3", "import asyncio\nassert asyncio.run(f()) == 3"),
        ("def f(n): return n + 1", "import random\nfor _ in range(2000):\n    n = random.randint(0, 99)\n    assert f(n) == n + 1"),
        ("def f(): print('hello')", "import contextlib, io\nout = io.StringIO()\nwith contextlib.redirect_stdout(out):\n    f()\nassert out.getvalue() == 'hello\\n'"),
        ("def f(): return {1: {2}, 'k': (1.5, None)}", "assert f() == {1: {2}, 'k': (1.5, None)}\nassert f().keys() == {1, 'k'}"),
    ],
)  # fmt: skip
def test_what_texts_of_tests_do_still_works(program: str, tests: str, tmp_path: Path) -> None:
    said, reward, *_ = play(task(tmp_path, tests, None), program)
    assert reward == 1.0, said


@pytest.mark.parametrize(
    ("tests", "said"),
    [
        (SQUARE, "AssertionError"),
        ("def check(f):\n    assert f(3) == 9, 'first\\nit should be 9'\n", "AssertionError"),
        ("def check(f):\n    if f(3) != 9: raise ValueError('9 is right')\n", "ValueError"),
        ("def check(f):\n    {9: 1}[f(3) + 4]\n", "KeyError"),
        ("def check(f):\n    assert f(3) = 9", "SyntaxError"),
    ],
)
def test_a_failing_text_says_what_was_raised_and_not_what_was_expected(
    tests: str, said: str, tmp_path: Path
) -> None:
    observation, reward, *_ = play(task(tmp_path, tests, max_turns=2), "def f(x): return 0")
    assert reward == 0.0
    assert f"fails: {said}." in observation
    assert "9" not in observation
