"""Java machine: the process in which a simulator written in Java runs, lent to one episode after another.

Starting one takes seconds and about 200 MB, so a machine whose episode ended is kept for the next one, and there are as many as
episodes at the same time. Two episodes never share one: the simulators keep their state, random generator included, in static
fields. A machine ends with the process that started it, killed or not.
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
from gem_envs.games.base import Game

__all__ = ["JavaGame", "JavaMachine", "JavaProgram", "NoJavaError"]

_OPTIONS = (
    # The simulators are small and their episodes short: one thread collects, and the first compiler is enough.
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Djava.awt.headless=true",
    # ScienceWorld lists sets of objects in the order of their hash codes, which Java draws at random: they shall all be equal.
    "-XX:+UnlockExperimentalVMOptions",
    "-XX:hashCode=2",
)


class NoJavaError(MissingDependencyError):
    """Raised when there is no Java to run a simulator with."""

    def __str__(self) -> str:
        return (
            f"{self.what} needs Java, and there is none: {self.cause}. Install one (`apt-get install default-jre-headless`, "
            "17 was run), or set JAVA_HOME to where it is"
        )


class JavaProgram:
    """A simulator inside a Python package: its jar, and the class to make one object of in each machine."""

    def __init__(self, name: str, extra: str, package: str, jar: str, class_name: str) -> None:
        self.name, self.extra, self.package, self.class_name = name, extra, package, class_name
        self._jar = jar

    @functools.cached_property
    def folder(self) -> Path:
        """Where the package is, found without importing it."""
        found = importlib.util.find_spec(self.package)
        if found is None or not found.submodule_search_locations:
            raise MissingDependencyError(self.name, self.extra, f"No module named {self.package!r}")
        return Path(found.submodule_search_locations[0])

    @functools.cached_property
    def classpath(self) -> str:
        """Its jar, and that of the bridge to Python."""
        try:
            from py4j.java_gateway import find_jar_path
        except ImportError as error:
            raise MissingDependencyError(self.name, self.extra, str(error)) from error
        return os.pathsep.join((os.path.abspath(find_jar_path()), str(self.folder / self._jar)))

    @functools.cached_property
    def java(self) -> str:
        """The Java to run it with: that of JAVA_HOME, else the first on the path."""
        home = os.environ.get("JAVA_HOME")
        found = shutil.which("java", path=os.path.join(home, "bin") if home else None)
        if found is None:
            cause = (
                f"JAVA_HOME is {home!r}, without bin/java in it"
                if home
                else "no `java` on the path"
            )
            raise NoJavaError(self.name, self.extra, cause)
        return found

    def check(self) -> None:
        """Raises where the package or Java is missing; starts nothing."""
        _ = self.classpath, self.java

    def borrow(self) -> JavaMachine:
        """A machine nobody uses: an idle one, or a new one."""
        with _lock:
            ours = [machine for machine in _idle if machine.program is self]
            _idle[:] = [machine for machine in _idle if machine.program is not self]
            alive = [machine for machine in ours if machine.usable]
            found = alive.pop() if alive else None  # the last one used is the warmest
            _idle.extend(alive)
        for machine in ours:
            if not machine.usable:  # it died while nobody used it
                machine.end()
        return found or JavaMachine(self)


class JavaMachine:
    """A running machine with one simulator in it, used by one episode at a time."""

    def __init__(self, program: JavaProgram) -> None:
        from py4j.java_gateway import GatewayParameters, JavaGateway

        self.program = program
        self._owner = os.getpid()
        self._busy = False
        command = [program.java, *_OPTIONS, "-classpath", program.classpath, "py4j.GatewayServer"]
        with tempfile.TemporaryFile() as complaints:
            # A session of its own: Ctrl-C is for Python, which ends the machine. It also ends when its stdin closes.
            self._process = subprocess.Popen(
                [*command, "--die-on-broken-pipe", "--enable-auth", "0"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=complaints,
                cwd=program.folder,  # where it looks for its data
                start_new_session=True,
            )
            assert self._process.stdout is not None
            port, token = (
                self._process.stdout.readline().strip(),
                self._process.stdout.readline().strip(),
            )
            if not (port.isdigit() and token):
                self._process.kill()
                self._process.communicate()
                complaints.seek(0)
                said = (port + b" " + complaints.read(2000)).decode("utf-8", "replace").strip()
                raise EnvError(
                    f"Java ({program.java}) did not start {program.name}: {said or 'it said nothing'}"
                )
        _started.add(self)
        # Without py4j's memory management, which calls a machine that has ended when a reference to it is collected.
        parameters = GatewayParameters(
            port=int(port), auth_token=token.decode(), enable_memory_management=False
        )
        self._gateway = JavaGateway(gateway_parameters=parameters)
        try:
            java = self._gateway.jvm.java
            # The simulators print what they do, line by line, to whoever may read it.
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
        """Whether it runs, and belongs to this process and not to one that this was forked from."""
        return self._owner == os.getpid() and self._process.poll() is None

    def call(self, method: str, *args: Any) -> Any:
        """What a method of the simulator returns; a list comes as an object of Java's."""
        from py4j.protocol import Py4JError, Py4JJavaError

        self._busy = True
        try:
            return getattr(self._simulator, method)(*args)
        except Py4JJavaError as error:
            said = str(error.java_exception)
            raise EnvError(f"{self.program.name} raised in {method}{args!r}: {said}") from None
        except (Py4JError, OSError) as error:
            self.end()
            raise EnvDiedError(
                f"the Java machine of {self.program.name} is gone: {error}"
            ) from error
        finally:
            self._busy = False

    def strings(self, method: str, *args: Any) -> list[str]:
        """The list of strings a method returns, fetched at once and not one by one."""
        found = self.call(method, *args)
        joined = str(self._join("\n", found))
        self._gateway.detach(found)
        return joined.split("\n") if joined else []

    def give_back(self) -> None:
        """Lends it to others; one that died, or is still at work for an episode nobody waits for any more, is ended."""
        if self._busy or not self.usable:
            self.end()
        else:
            with _lock:
                if self not in _idle:
                    _idle.append(self)

    def end(self) -> None:
        """Ends the process; calling it twice is harmless."""
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
    """A game whose rules a Java program knows. It holds a machine from `reset` to the end of the episode."""

    execution = "thread"
    program: JavaProgram
    _loan: weakref.finalize[Any, Any] | None = None
    _machine: JavaMachine | None = None

    def borrow(self) -> JavaMachine:
        """For `reset`: a machine for this episode, which others get when it ends, or when nobody has the environment any more."""
        if self._machine is None or not self._machine.usable:
            self.give_back()
            self._machine = self.program.borrow()
            self._loan = weakref.finalize(self, self._machine.give_back)
        return self._machine

    @property
    def machine(self) -> JavaMachine:
        """The machine of the episode that runs."""
        if self._machine is None or not self._machine.usable:
            raise EnvDiedError(
                f"there is no Java machine of {self.program.name} with this episode; reset() gets one"
            )
        return self._machine

    def give_back(self) -> None:
        """Lets others have the machine."""
        if self._loan is not None:
            self._loan()
        self._loan = self._machine = None

    def on_close(self) -> None:
        self.give_back()
