"""Tests of the Python tool and its sandbox: results, limits, state and isolation."""

from __future__ import annotations

import os
import runpy
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from project import ROOT
from tool_worlds import Quiz

from gem_core.errors import ConfigError
from gem_tools import ToolError
from gem_tools.python import PythonTool, _program
from gem_tools.sandbox import containment, uids
from gem_tools.sandbox.sandbox import Sandbox, SandboxLimits
from gem_tools.wrapper import ToolWrapper


@pytest.fixture(scope="module", params=["full", "partial"])
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    limits = SandboxLimits(seconds=60, memory_mb=512, output_kb=32)
    with Sandbox(limits, isolation=request.param) as sandbox:
        yield sandbox


def tool(sandbox: Sandbox, **settings: Any) -> PythonTool:
    return PythonTool(sandbox=sandbox, **settings)


def wait_until_warm(sandbox: Sandbox) -> None:
    deadline = time.monotonic() + 60
    while len(sandbox._ready) < sandbox.warm:
        assert time.monotonic() < deadline, "the workers do not start"
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("code", "text", "end"),
    [
        ("print(1 + 1)", "2", "ok"),
        ("x = 1", "(the program printed nothing)", "ok"),
        ("1 + 1", "(the program printed nothing)", "ok"),
        ("```python\nprint(3)\n```", "3", "ok"),
        (" ``` PY \nprint('```')\n  ```\n", "```", "ok"),
        ("import sys; sys.exit(0)", "(the program printed nothing)", "ok"),
        ("import sys; sys.exit(3)", "The program ended with status 3.", "error"),
        ("import sys; sys.exit('no more')", "no more", "error"),
        ("print('a\\x00b\\x1b[1m')", "a\\x00b\\x1b[1m", "ok"),
        ("import os; os.write(1, b'\\xff\\xfe ok')", "\\xff\\xfe ok", "ok"),
        ("print('\\ud800')", "\\ud800", "ok"),
        ("print('ä€😀')", "ä€😀", "ok"),
        ("print(input())", "EOFError: EOF when reading a line", "error"),
        (
            "import numpy_is_not_here",
            "ModuleNotFoundError: No module named 'numpy_is_not_here'",
            "error",
        ),
        ("# import threading\nprint('a comment is no import')", "a comment is no import", "ok"),
        ("if __name__ == '__main__':\n    print('main')", "main", "ok"),
        (
            "import threading\nthreading.Thread(target=print, args=('from a thread',)).start()",
            "from a thread",
            "ok",
        ),
        ("import atexit\natexit.register(print, 'at exit')", "at exit", "ok"),
        ("import os\nprint(sorted(k for k in os.environ if 'SECRET' in k))", "[]", "ok"),
        ("def f(x: int): pass\nprint(f.__annotations__['x'])", "<class 'int'>", "ok"),
        ("print({'b', 'a', 'c', 'd'} == set('abcd'), hash('gem') != 0)", "True True", "ok"),
    ],
)
def test_result_is_the_programs_output(sandbox: Sandbox, code: str, text: str, end: str) -> None:
    result = tool(sandbox).call({"code": code})
    assert result.text.splitlines()[-1] == text
    assert (result.info["end"], result.error) == (end, end != "ok")


def test_fence_is_removed_in_linear_time() -> None:
    began = time.monotonic()
    program = " " * 100_000 + "x"
    assert _program(f"```python\n{program}") == f"```python\n{program}"
    assert _program(f"```python\n{program}\n```") == program
    assert time.monotonic() - began < 1


def test_traceback_shows_only_the_models_code(sandbox: Sandbox) -> None:
    code = "def f():\n    return 1 / 0\nprint('before')\nf()"
    text = tool(sandbox).call({"code": code}).text
    assert text.startswith(
        "before\nTraceback (most recent call last):\n"
        '  File "<python>", line 4, in <module>\n    f()\n'
    )
    assert text.endswith("ZeroDivisionError: division by zero")
    assert "worker" not in text
    last_line = tool(sandbox, errors="last_line").call({"code": code}).text
    assert last_line == "before\nZeroDivisionError: division by zero"
    assert "SyntaxError: invalid syntax" in tool(sandbox).call({"code": "def f(:"}).text
    assert "null bytes" in tool(sandbox).call({"code": "print(1)\0"}).text
    assert "surrogates" in tool(sandbox).call({"code": "'\ud800'"}).text
    assert "RecursionError" in tool(sandbox).call({"code": "def f(): f()\nf()"}).text


def test_long_output_is_cut_with_a_note(sandbox: Sandbox) -> None:
    result = tool(sandbox).call({"code": "print('x' * 20_000_000)"})
    assert result.info["end"] == "ok"
    assert len(result.text) < 33_000
    assert result.text.endswith("(only the first 32 KB of the output are shown)")
    code = "import sys\nwhile True:\n    sys.stdout.write('y' * 1_000_000)"
    result = tool(sandbox).call({"code": code})
    assert result.info["end"] in ("output", "time")
    assert "The program was stopped" in result.text


@pytest.mark.parametrize("isolation", ["full", "partial"])
def test_program_is_stopped_at_the_wall_time(isolation: Any) -> None:
    seconds = 2.5
    with Sandbox(SandboxLimits(seconds=seconds), isolation=isolation, warm=1) as sandbox:
        begin = time.monotonic()
        result = tool(sandbox).call({"code": "import time\nprint('begun')\ntime.sleep(60)"})
        took = time.monotonic() - begin
        assert result.text == f"begun\nThe program was stopped: it took over {seconds:g} s."
        assert seconds <= result.info["seconds"] < seconds + 30
        assert took < seconds + 30  # includes the start of the worker


def test_cpu_time_has_its_own_limit() -> None:
    with Sandbox(SandboxLimits(seconds=30, cpu_seconds=1), warm=0) as sandbox:
        result = tool(sandbox).call({"code": "while True: pass"})
        assert result.info["end"] == "killed"
        assert result.info["seconds"] < 20


def test_memory_is_limited(sandbox: Sandbox) -> None:
    assert "MemoryError" in tool(sandbox).call({"code": "x = bytearray(4 << 30)"}).text
    text = tool(sandbox).call({"code": "x = bytearray(64 << 20)\nprint(len(x))"}).text
    assert text == str(64 << 20)


def test_small_program_takes_less_than_ten_milliseconds(sandbox: Sandbox) -> None:
    sandbox.start()
    times: list[float] = []
    while sum(took < 0.010 for took in times) < 5:  # most may be slow, as the machine may be busy
        assert len(times) < 100, times
        wait_until_warm(sandbox)
        begin = time.perf_counter()
        assert sandbox.run("print(1+1)").stdout == "2\n"
        times.append(time.perf_counter() - begin)


def test_worker_serves_only_one_call(sandbox: Sandbox) -> None:
    code = (
        "import os, builtins\nprint(getattr(builtins, 'seen', 'never'), 'left' in os.listdir())\n"
        "builtins.seen = 'before'\nopen('left', 'w').close()"
    )
    assert {tool(sandbox).call({"code": code}).text for _ in range(5)} == {"never False"}


ALLOWED = {
    "files": """
import os, tempfile
with tempfile.NamedTemporaryFile() as f:
    f.write(b'abc')
    f.truncate(1)
    os.truncate(f.fileno(), 2)
    assert os.path.getsize(f.name) == 2
open('a', 'w').write('x')
open('a', 'r+').close()
open('a', 'w').close()
os.replace('a', 'b')
os.remove('b')
""",
    "folders": """
import os, pathlib, shutil, tempfile
with tempfile.TemporaryDirectory() as d:
    pathlib.Path(d, 'a').touch()
    shutil.copyfile(f'{d}/a', f'{d}/b')
    shutil.move(f'{d}/b', f'{d}/c')
    os.makedirs(f'{d}/e/f')
    shutil.rmtree(f'{d}/e')
    assert sorted(os.listdir(d)) == ['a', 'c']
""",
    "archives": """
import io, tarfile, zipfile
with zipfile.ZipFile('a.zip', 'w') as z:
    z.writestr('x/y', 'hello')
zipfile.ZipFile('a.zip').extractall('z')
assert open('z/x/y').read() == 'hello'
with tarfile.open('a.tar', 'w') as t:
    t.add('z/x/y', 'y')
with tarfile.open('a.tar') as t:
    t.extraction_filter = getattr(tarfile, 'data_filter', None)  # Python 3.11.4
    t.extractall('t')
assert open('t/y').read() == 'hello'
""",
    "databases": """
import sqlite3
with sqlite3.connect('a.db') as c:
    c.execute('pragma journal_mode=wal')
    c.execute('create table t (x)')
    c.execute('insert into t values (1)')
assert list(c.execute('select x from t')) == [(1,)]
""",
    "descriptors": """
import fcntl, os
r, w = os.pipe()
os.set_blocking(r, False)
os.set_inheritable(r, True)
os.dup(r)
fcntl.fcntl(r, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
fcntl.fcntl(r, fcntl.F_DUPFD_CLOEXEC, 10)
assert fcntl.fcntl(r, fcntl.F_GETFD) == 1
with open('a', 'w') as f:
    fcntl.lockf(f, fcntl.LOCK_EX)
os.isatty(1)
""",
    "asyncio": """
import asyncio
async def f():
    return await asyncio.to_thread(sum, [1, 2])
assert asyncio.run(f()) == 3
""",
    "threads": """
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(8) as p:
    assert list(p.map(abs, range(-20, 0))) == list(range(20, 0, -1))
""",
    "timers": """
import signal
seen = []
signal.signal(signal.SIGALRM, lambda *a: seen.append(1))
signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
signal.pause()
signal.setitimer(signal.ITIMER_REAL, 0)
assert seen
""",
}


@pytest.mark.parametrize("name", ALLOWED)
def test_harmless_program_works_in_every_sandbox(sandbox: Sandbox, name: str) -> None:
    outcome = sandbox.run(ALLOWED[name])
    assert (outcome.end, outcome.stderr) == ("ok", "")


COPY = """
import os, shutil
open('a', 'w').write('x')
try:
    shutil.copy('a', 'b')
finally:
    print(open('b').read())
"""
TRUNCATE = """
import os
open('a', 'w').write('xy')
os.truncate('a', 1)
print(open('a').read())
"""


@pytest.mark.parametrize("code", [COPY, TRUNCATE])
def test_fallback_denies_some_harmless_calls(sandbox: Sandbox, code: str) -> None:
    outcome = sandbox.run(code)
    assert outcome.stderr == "" if sandbox.containment.full else "PermissionError" in outcome.stderr
    assert outcome.stdout == ("x\n" if sandbox.containment.full or "shutil" in code else "")


def test_threads_are_contained_only_if_they_are_limited() -> None:
    with Sandbox(isolation="partial", warm=0) as sandbox:
        limited = "RLIMIT_NPROC" in sandbox._plan.limits
        assert ("the number of threads" in sandbox.containment.contained) is limited
        assert limited is ("uid" in sandbox.containment.parts)


def test_sandbox_serves_many_threads(sandbox: Sandbox) -> None:
    outputs: list[str] = []
    threads = [
        threading.Thread(target=lambda n=n: outputs.append(sandbox.run(f"print({n})").stdout))
        for n in range(24)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(outputs) == sorted(f"{n}\n" for n in range(24))


def test_episode_state_keeps_names_until_reset(sandbox: Sandbox) -> None:
    env = ToolWrapper(Quiz(), [tool(sandbox, state="episode")])
    env.reset(seed=1)

    def run(code: str) -> str:
        return env.step(f"<python>{code}</python>")[0]

    run("import math\nx = [1]\nclass P:\n    def __init__(self, v): self.v = v")
    run("def double(v): return 2 * v + len(x) - 1\np = P(4)")
    assert run("double(p.v) + math.floor(1.5)") == "9"
    assert run("x.append(2); len(x)") == "2"
    assert "NameError" in run("y")  # a failed call does not change the names
    assert run("len(x)") == "2"
    assert "these names cannot be kept for the next call: g" in run("g = (i for i in x)")
    assert "NameError" in run("g")
    env.reset(seed=1)
    assert "NameError" in run("x")


COUNTER = """
def counter():
    n = 0
    def add():
        nonlocal n
        n += 1
        return n
    def get(): return n
    return add, get
add, get = counter()
"""
CLASSES = """
import abc, collections, enum, functools
from dataclasses import dataclass, field, fields
from typing import Generic, NamedTuple, TypedDict, TypeVar
class Base(abc.ABC):
    kinds = []
    def __init_subclass__(cls): Base.kinds.append(cls)
    @abc.abstractmethod
    def area(self): ...
class Square(Base):
    __slots__ = ("side",)
    def __init__(self, side): super().__init__(); self.side = side
    def area(self): return self.side ** 2
    @property
    def double(self): return 2 * self.side
    @classmethod
    def unit(cls): return cls(1)
    @staticmethod
    def name(): return "square"
@dataclass
class Point:
    x: int
    y: list = field(default_factory=list)
class Color(enum.Enum):
    RED = "r"
    BLUE = "b"
    def code(self): return self.value * 2
class Level(enum.IntFlag):
    LOW = 1
    HIGH = 2
class Pair(NamedTuple):
    a: int
    b: int = 2
class Options(TypedDict):
    verbose: bool
Old = collections.namedtuple("Old", "u v")
T = TypeVar("T", bound=Base)
class Stack(Generic[T]):
    def push(self, item: T) -> T: return item
class Lazy:
    @functools.cached_property
    def value(self): return 42
@functools.lru_cache(maxsize=None)
def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)
class Missing(KeyError):
    def __str__(self): return "missing " + self.args[0]
square, point, color, pair, old, lazy = Square(3), Point(1), Color.RED, Pair(1), Old(5, 6), Lazy()
level, error = Level.LOW | Level.HIGH, Missing("key")
"""
CLASSES_USED = """
assert [square.area(), square.double, Square.unit().area(), Square.name()] == [9, 6, 1, "square"]
assert Base.kinds == [Square] and isinstance(square, Base) and type(square) is Square
try: Base()
except TypeError: pass
else: raise AssertionError
assert point == Point(1, []) and [f.name for f in fields(Point)] == ["x", "y"]
assert color is Color.RED and Color("b") is Color.BLUE and color.code() == "rr"
assert level == 3 and list(Level) == [1, 2] and type(level) is Level
assert pair == (1, 2) and pair._replace(a=3).a == 3 and old.v == 6 and Old(1, 2).u == 1
assert Options(verbose=True)["verbose"] and Options.__total__ and lazy.value == 42
assert Stack[Square]().push(1) == 1 and T.__bound__ is Base and Stack.__parameters__ == (T,)
assert fib(30) == 832040 and str(error) == "missing key" and isinstance(error, Missing)
"same"
"""

ERRORS = """
class Bad(Exception):
    def __init__(self, x, *, y=2): print("runs"); super().__init__(f"bad {x}"); self.y = y
class Pair(ValueError):
    def __init__(self, a, b): super().__init__(a)
class Gone(OSError):
    def __init__(self, path): super().__init__(2, "gone", path)
class Slots(Exception):
    __slots__ = ("x",)
    def __init__(self, x): self.x = x
class Made(Exception):
    def __new__(cls, x): return super().__new__(cls, x, x)
class Own(Exception):
    def __init__(self, a, b): super().__init__(a); self.b = b
    def __reduce__(self): return Own, (self.args[0], self.b)
bad, pair, gone, slots, made, own = Bad(1, y=3), Pair(1, 2), Gone("p"), Slots(4), Made(5), Own(6, 7)
before = [(str(e), e.args) for e in (bad, pair, gone, slots, made, own)]
"""
ERRORS_USED = """
assert [(str(e), e.args) for e in (bad, pair, gone, slots, made, own)] == before
assert (bad.y, gone.errno, gone.filename, slots.x, own.b) == (3, 2, "p", 4, 7)
"same"
"""


@pytest.mark.parametrize(
    ("calls", "output"),
    [
        (["n = 3\ndef f(x=n, *, y=n): return x + y", "n = 5", "f()"], "6"),
        (["def f(x=[]): x.append(1); return len(x)", "f()", "f()"], "2"),
        (["def f(): return 1", "def f(): return 2", "def f(): return 1", "f()"], "1"),
        (["def f(): return 1", "f = lambda: 2", "f()"], "2"),
        (["def f(): return 1", "del f", "'f' in globals()"], "False"),
        (["import math", "del math", "'math' in globals()"], "False"),
        (["from math import pi", "pi = 3", "pi"], "3"),
        (["def f(): return 1", "g = f; del f", "g()"], "1"),
        (["def f(): return 1\ng = f", "f is g"], "True"),
        (["a = b = []", "a.append(1)", "b"], "[1]"),
        ([COUNTER, "add(), add()", "add(), get()"], "(3, 3)"),
        (["if 1:\n def f(): return n\nn = 4", "n = 5", "f()"], "5"),
        (["try: import json as j\nexcept ImportError: pass", "j.dumps(1)"], "'1'"),
        (["import xml.etree.ElementTree", "xml.etree.ElementTree.fromstring('<a/>').tag"], "'a'"),
        (["from sys import stdout as out", "out.write('x'); None"], "x"),
        (
            ["from random import seed, random", "seed(1); x = random()", "seed(1); random() == x"],
            "True",
        ),
        (["def d(f): print('d'); return f\n@d\ndef f(): return 1", "f()"], "1"),
        (["def f(x): return x\nf.calls = 3", "f.calls"], "3"),
        (["class C: n = 0", "C.n += 1", "C.n"], "1"),
        (
            ["class P: v = 1\np = P()", "class P: v = 2", "p.v, P.v, isinstance(p, P)"],
            "(1, 2, False)",
        ),
        (["__x = 1; _y = 2", "__x + _y"], "3"),
        (
            ["scope = {}; exec('def f(): return g()\\ndef g(): return 7', scope)", "scope['f']()"],
            "7",
        ),
        ([CLASSES, "1", CLASSES_USED], "'same'"),
        (["import collections as c\nd = c.defaultdict(lambda: 5)", "d[1]"], "5"),
        (["import dataclasses as d\nx = d.MISSING", "x is d.MISSING"], "True"),
        ([ERRORS, "1", ERRORS_USED], "'same'"),
        (["class A:\n class B: pass", "1", "A.B.__qualname__"], "'A.B'"),
        (["import sys\ndel sys.modules['__main__']\ndef f(): return x\nx = 1", "f()"], "1"),
    ],
)
def test_episode_state_is_that_of_an_interactive_session(
    sandbox: Sandbox, calls: list[str], output: str
) -> None:
    python, state = tool(sandbox, state="episode"), None
    for code in calls:
        result: Any = python.call({"code": code}, state)
        assert not result.error and "lost" not in result.info, result.text
        state = result.state
    assert result.text == output


def test_names_that_cannot_be_restored_do_not_take_others_with_them(sandbox: Sandbox) -> None:
    code = (
        "class Bad:\n    def __setstate__(self, state): raise SystemExit\n"
        "bad, gen, shared = Bad(), (i for i in ()), [1]\nbad.x, both = 1, (shared, shared)"
    )
    python = tool(sandbox, state="episode")
    result: Any = python.call({"code": code})
    assert result.info["lost"] == ["bad", "gen"]
    result = python.call({"code": "Bad.__name__, both[0] is shared"}, result.state)
    assert result.text == "('Bad', True)"


HELPER = """
import os, sys
os.mkdir("package")
open("package/part.py", "w").write("")
open("colorsys.py", "w").write("def wrapped():\\n    return lambda: 1")
open("helper.py", "w").write("def f(): return 1\\nclass C: pass\\nc = C()")
sys.path.insert(0, ".")
import colorsys, helper, json.tool as tool, package.part as part, sched
from helper import C, c, f
inner, new, x = colorsys.wrapped(), type(sys)("new"), 41
"""


def test_only_the_names_of_a_module_in_the_working_folder_are_lost(sandbox: Sandbox) -> None:
    python = tool(sandbox, state="episode")
    result: Any = python.call({"code": HELPER})
    lost = {"colorsys", "helper", "part", "C", "c", "f", "inner", "new"}
    assert set(result.info["lost"]) == lost
    result = python.call({"code": "x + 1, tool.__name__, sched.__name__"}, result.state)
    assert result.text == "(42, 'json.tool', 'sched')"


def test_check_of_the_names_prints_nothing(sandbox: Sandbox) -> None:
    code = (
        "class Loud:\n    def __del__(self): print('deleted')\n"
        "    def __setstate__(self, state): print('set')\nloud = Loud()\nloud.x = 1"
    )
    result = tool(sandbox, state="episode").call({"code": code})
    assert result.text == "(the program printed nothing)"


def test_traceback_of_an_earlier_function_has_no_wrong_source(sandbox: Sandbox) -> None:
    python = tool(sandbox, state="episode")
    result: Any = python.call({"code": "def f():\n    return 1 / 0"})
    result = python.call({"code": "# one\n# two\nf()"}, result.state)
    assert 'File "<earlier>", line 2, in f\nZeroDivisionError' in result.text
    assert "    f()\n" in result.text


def test_names_are_dropped_without_state(sandbox: Sandbox) -> None:
    env = ToolWrapper(Quiz(), [tool(sandbox)])
    env.reset(seed=1)
    env.step("<python>x = 1</python>")
    assert "NameError" in env.step("<python>print(x)</python>")[0]


def test_packages_and_preload_make_modules_available() -> None:
    code = "import pytest\nprint(pytest.__name__)"
    assert "ModuleNotFoundError" in PythonTool(seconds=10).call({"code": code}).text
    assert PythonTool(seconds=10, packages=True).call({"code": code}).text == "pytest"
    with Sandbox(preload=("decimal",), warm=1) as sandbox:
        assert sandbox.run("import sys\nprint('decimal' in sys.modules)").stdout == "True\n"


def test_info_lists_what_is_not_contained(sandbox: Sandbox) -> None:
    info = tool(sandbox).call({"code": "1"}).info
    assert info["sandbox"] == sandbox.containment.kind
    assert bool(info["not_contained"]) is not sandbox.containment.full
    with Sandbox(isolation="partial", filters=False, warm=0) as plain:
        assert set(plain.containment.not_contained) > set(sandbox.containment.not_contained)
        assert "the network" in plain.containment.not_contained


def test_full_isolation_requires_bubblewrap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(containment, "bubblewrap", lambda: "")
    containment.contain.cache_clear()
    try:
        with pytest.raises(ConfigError, match="bwrap.*not installed.*apt-get install bubblewrap"):
            PythonTool(isolation="full", seconds=4.25)
        assert "bwrap" in PythonTool(seconds=4.5).sandbox.containment.reason
        assert PythonTool(seconds=4.5).call({"code": "print(2)"}).text == "2"
    finally:
        containment.contain.cache_clear()


def test_tools_with_equal_settings_share_a_sandbox() -> None:
    assert PythonTool(seconds=3.5).sandbox is PythonTool(seconds=3.5).sandbox
    assert PythonTool(seconds=3.5).sandbox is not PythonTool(seconds=3.75).sandbox


def test_close_ends_all_workers_and_later_calls_raise() -> None:
    sandbox = Sandbox(warm=2)
    sandbox.run("print(1)")
    wait_until_warm(sandbox)
    workers = list(sandbox._ready)
    sandbox.close()
    sandbox.close()
    assert workers
    assert all(worker._process.poll() is not None for worker in workers)
    with pytest.raises(ToolError, match="closed"):
        sandbox.run("print(1)")


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_process_starts_its_own_workers() -> None:
    with Sandbox(warm=2) as sandbox:
        sandbox.run("print(1)")
        wait_until_warm(sandbox)
        parents = list(sandbox._ready)
        child = os.fork()
        if child == 0:
            try:
                ok = sandbox.run("print(2)").stdout == "2\n"
                sandbox.close()
                os._exit(0 if ok else 1)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert parents
        assert all(worker._process.poll() is None for worker in parents)
        assert sandbox.run("print(3)").stdout == "3\n"


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_programs_of_forked_processes_run_as_different_users() -> None:
    with Sandbox(warm=0) as sandbox:
        code = "import os\nprint(os.getuid())"
        users = [sandbox.run(code).stdout]
        for _ in range(2):
            read, write = os.pipe()
            child = os.fork()
            if child == 0:
                try:
                    os.write(write, sandbox.run(code).stdout.encode())
                finally:
                    os._exit(0)
            os.close(write)
            os.waitpid(child, 0)
            users.append(os.read(read, 100).decode())
            os.close(read)
        users.append(sandbox.run(code).stdout)
    assert len(set(users)) == (4 if os.geteuid() == 0 else 1), users


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_two_processes_never_claim_the_same_user_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uids, "_claimed", {})
    monkeypatch.setattr(uids.secrets, "randbelow", lambda blocks: blocks - 1)
    first = uids.next_uid(0)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, str(uids.next_uid(0)).encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    claimed = int(os.read(read, 100))
    os.close(read)
    assert {first, claimed} <= set(range(0, 100_000_000, 100_000))
    assert claimed != first
    assert uids.next_uid(0) == first + 1


def test_user_ids_do_not_repeat_and_each_range_has_its_own_counter() -> None:
    users = [uids.next_uid(0) for _ in range(20_000)]
    assert len(set(users)) == 20_000
    first = uids.next_uid(1)
    uids.next_uid(0)
    assert uids.next_uid(1) == first + 1


@pytest.mark.slow
def test_a_thousand_calls_from_64_episodes_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    benchmarks = ROOT / "benchmarks"
    monkeypatch.syspath_prepend(benchmarks)  # the benchmarks share a module
    benchmark = runpy.run_path(str(benchmarks / "tools.py"))
    row = benchmark["gem"]("auto", 1000, 64)
    assert (row["right"], row["failed"]) == (1000, 0)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"seconds": 0}, "seconds"),
        ({"memory_mb": -1}, "memory_mb"),
        ({"output_kb": True}, "output_kb"),
        ({"isolation": "some"}, "isolation"),
        ({"state": "forever"}, "state"),
        ({"errors": "none"}, "errors"),
    ],
)
def test_invalid_settings_are_rejected(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        PythonTool(**settings)
