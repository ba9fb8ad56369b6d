"""A pool of JVM processes for simulators written in Java.

Starting a JVM takes seconds and about 200 MB, so one whose episode ended serves the next episode.
Concurrent episodes never share a JVM: the simulators keep their state, including the random
generator, in static fields. A JVM exits with the Python process that started it, even after
`kill -9`.
"""

from __future__ import annotations

import atexit
import functools
import importlib.util
import os
import shutil
import subprocess
import tempfile
import threading
import weakref
from pathlib import Path
from typing import Any

from gem_core.errors import EnvDiedError, EnvError, MissingDependencyError
from gem_core.wrappers.formats import without_surrogates
from gem_envs.games.base import Game

__all__ = ["JavaGame", "JavaMachine", "JavaProgram", "NoJavaError"]

_OPTIONS = (
    # The simulators are small and the episodes short: use the serial collector and only C1.
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Djava.awt.headless=true",
    # ScienceWorld iterates over hash sets, and Java's identity hash codes are random. Make them all
    # equal for a deterministic order.
    "-XX:+UnlockExperimentalVMOptions",
    "-XX:hashCode=2",
)


class NoJavaError(MissingDependencyError):
    """Raised when Java is not installed."""

    def __str__(self) -> str:
        return (
            f"{self.what} needs Java: {self.cause}. "
            "Install it (`apt-get install default-jre-headless`; tested with 17) or set JAVA_HOME"
        )


class JavaProgram:
    """A simulator inside a Python package: its jar and the class each JVM instantiates once."""

    def __init__(self, name: str, extra: str, package: str, jar: str, class_name: str) -> None:
        self.name, self.extra, self.package, self.class_name = name, extra, package, class_name
        self._jar = jar

    @functools.cached_property
    def folder(self) -> Path:
        """The folder of the package, which is not imported."""
        module = importlib.util.find_spec(self.package)
        if module is None or not module.submodule_search_locations:
            raise MissingDependencyError(self.name, self.extra, f"No module named {self.package!r}")
        return Path(module.submodule_search_locations[0])

    @functools.cached_property
    def classpath(self) -> str:
        """The simulator's jar and py4j's jar."""
        try:
            from py4j.java_gateway import find_jar_path
        except ImportError as error:
            raise MissingDependencyError(self.name, self.extra, str(error)) from error
        return os.pathsep.join((os.path.abspath(find_jar_path()), str(self.folder / self._jar)))

    @functools.cached_property
    def java(self) -> str:
        """The path of the `java` executable: from JAVA_HOME if that is set, else from PATH."""
        home = os.environ.get("JAVA_HOME")
        executable = shutil.which("java", path=os.path.join(home, "bin") if home else None)
        if executable is None:
            cause = f"JAVA_HOME={home!r} has no bin/java" if home else "no `java` on the path"
            raise NoJavaError(self.name, self.extra, cause)
        return executable

    def check(self) -> None:
        """Raise if the package or Java is missing; start nothing."""
        _ = self.classpath, self.java

    def borrow(self) -> JavaMachine:
        """Return an idle JVM, or start one."""
        with _lock:
            ours = [machine for machine in _idle if machine.program is self]
            _idle[:] = [machine for machine in _idle if machine.program is not self]
            alive = [machine for machine in ours if machine.usable]
            warmest = alive.pop() if alive else None  # the last one used
            _idle.extend(alive)
        for machine in ours:
            if not machine.usable:  # it died while idle
                machine.end()
        return warmest or JavaMachine(self)


class JavaMachine:
    """A running JVM with one simulator object; one episode uses it at a time."""

    def __init__(self, program: JavaProgram) -> None:
        from py4j.java_gateway import GatewayParameters, JavaGateway

        self.program = program
        self._owner = os.getpid()
        self._busy = False
        command = [program.java, *_OPTIONS, "-classpath", program.classpath, "py4j.GatewayServer"]
        with tempfile.TemporaryFile() as stderr:
            # In its own session, Ctrl-C reaches only Python, which then ends the JVM.
            # The JVM also exits when its stdin closes.
            self._process = subprocess.Popen(
                [*command, "--die-on-broken-pipe", "--enable-auth", "0"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                cwd=program.folder,  # the simulator reads its data from the working directory
                start_new_session=True,
            )
            assert self._process.stdout is not None
            port = self._process.stdout.readline().strip()
            token = self._process.stdout.readline().strip()
            if not (port.isdigit() and token):
                self._process.kill()
                self._process.communicate()
                stderr.seek(0)
                output = (port + b" " + stderr.read(2000)).decode("utf-8", "replace").strip()
                raise EnvError(
                    f"Java ({program.java}) did not start {program.name}: {output or 'no output'}"
                )
        _started.add(self)
        # py4j's memory management would call an ended JVM when a reference is garbage-collected.
        parameters = GatewayParameters(
            port=int(port), auth_token=token.decode(), enable_memory_management=False
        )
        self._gateway = JavaGateway(gateway_parameters=parameters)
        try:
            java = self._gateway.jvm.java
            # The simulators print every step, and nothing reads the pipe.
            java.lang.System.setOut(java.io.PrintStream(java.io.OutputStream.nullOutputStream()))
            self._join = java.lang.String.join
            self._simulator = functools.reduce(
                getattr, program.class_name.split("."), self._gateway.jvm
            )()
        except BaseException:
            self.end()
            raise

    @property
    def usable(self) -> bool:
        """Whether the JVM runs and this process, not a forked parent, started it."""
        return self._owner == os.getpid() and self._process.poll() is None

    def call(self, method: str, *args: Any) -> Any:
        """Call a method of the simulator; lists are returned as Java objects."""
        from py4j.protocol import Py4JError, Py4JJavaError

        args = tuple(without_surrogates(arg) if isinstance(arg, str) else arg for arg in args)
        self._busy = True
        try:
            return getattr(self._simulator, method)(*args)
        except Py4JJavaError as error:
            reason = str(error.java_exception)
            raise EnvError(f"{self.program.name} raised in {method}{args!r}: {reason}") from None
        except (Py4JError, OSError) as error:
            self.end()
            raise EnvDiedError(f"the JVM of {self.program.name} died: {error}") from error
        finally:
            self._busy = False

    def strings(self, method: str, *args: Any) -> list[str]:
        """Call a method that returns a list of strings, and fetch the list in one round trip."""
        strings = self.call(method, *args)
        joined = str(self._join("\n", strings))
        self._gateway.detach(strings)
        return joined.split("\n") if joined else []

    def give_back(self) -> None:
        """Return the JVM to the pool; end it if it died or still runs an abandoned step."""
        if self._busy or not self.usable:
            self.end()
        else:
            with _lock:
                if self not in _idle:
                    _idle.append(self)

    def end(self) -> None:
        """Kill the process; a second call does nothing."""
        if self._owner != os.getpid():
            return
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._gateway.close()


_lock = threading.Lock()
_idle: list[JavaMachine] = []
_started: weakref.WeakSet[JavaMachine] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    for machine in list(_started):
        machine.end()


class JavaGame(Game):
    """A game that a Java simulator implements; it holds a JVM from `reset` to the episode's end."""

    execution = "thread"
    program: JavaProgram
    _loan: weakref.finalize[Any, Any] | None = None
    _machine: JavaMachine | None = None

    def borrow(self) -> JavaMachine:
        """Return a JVM for this episode.

        It goes back to the pool when the episode ends or the environment is garbage-collected.
        """
        if self._machine is None or not self._machine.usable:
            self.give_back()
            self._machine = self.program.borrow()
            self._loan = weakref.finalize(self, self._machine.give_back)
        return self._machine

    @property
    def machine(self) -> JavaMachine:
        """The JVM of the current episode."""
        if self._machine is None or not self._machine.usable:
            raise EnvDiedError(
                f"this episode of {self.program.name} has no running JVM; call reset()"
            )
        return self._machine

    def give_back(self) -> None:
        """Return the JVM to the pool."""
        if self._loan is not None:
            self._loan()
        self._loan = self._machine = None

    def on_close(self) -> None:
        self.give_back()
