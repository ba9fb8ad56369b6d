"""Mock of dm-launchpad, which has wheels for x86_64 and Python 3.10 only. Tests only.

A program is a list of nodes. Each node is a process. Calls between nodes go over unix sockets, one
connection per call.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from concurrent.futures import Future
from multiprocessing.connection import Client, Listener
from typing import Any

import plasma_mock  # noqa: F401 - oat imports launchpad before plasma

_RUNNING, _DONE, _FAILED = 0, 1, 2
_state: Any = None
"""The state of the program, shared by all its processes."""


class CourierNode:
    """A node whose methods other nodes can call."""

    def __init__(self, constructor: Any, *args: Any, **kwargs: Any) -> None:
        self.constructor, self.args, self.kwargs = constructor, args, kwargs


class PyClassNode(CourierNode):
    """A node whose `run` method does the work of the program."""


class CourierClient:
    """Client of a node: every method calls the node's process."""

    def __init__(self, address: str) -> None:
        self._address = address

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *args, **kwargs: self._call(name, args, kwargs)

    def __reduce__(self) -> Any:
        return CourierClient, (self._address,)

    @property
    def futures(self) -> _Futures:
        """The same methods, which return futures."""
        return _Futures(self)

    def _call(self, name: str, args: Any, kwargs: Any) -> Any:
        while not os.path.exists(self._address):  # the process is still starting
            time.sleep(0.05)
        with Client(self._address, family="AF_UNIX") as connection:
            connection.send((name, args, kwargs))
            succeeded, result = connection.recv()
        if not succeeded:
            raise RuntimeError(f"{name}() failed in another process:\n{result}")
        return result


class _Futures:
    def __init__(self, client: CourierClient) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Future[Any]:
            future: Future[Any] = Future()

            def wait() -> None:
                try:
                    future.set_result(self._client._call(name, args, kwargs))
                except BaseException as error:  # noqa: BLE001 - `Future.result` raises it again
                    future.set_exception(error)

            threading.Thread(target=wait, daemon=True).start()
            return future

        return call


class Program:
    """The nodes of a program, and their addresses."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.folder = tempfile.mkdtemp(prefix=name)
        self.nodes: list[tuple[CourierNode, str, str]] = []

    def add_node(self, node: CourierNode, label: str) -> CourierClient:
        """Add a node and return its client, which works once the program runs."""
        address = os.path.join(self.folder, label)
        self.nodes.append((node, label, address))
        return CourierClient(address)


def stop() -> None:
    """End the program from within one of its nodes."""
    _state.value = _state.value or _DONE


def launch(
    program: Program, launch_type: Any = None, local_resources: Any = None, terminal: Any = None
) -> WorkerManager:
    """Start a program and return at once, as launchpad does."""
    spawn = multiprocessing.get_context("spawn")
    state = spawn.Value("i", _RUNNING)
    processes = [
        spawn.Process(target=_run_node, args=(node, address, state), name=label)
        for node, label, address in program.nodes
    ]
    for process in processes:
        process.start()
    return WorkerManager(processes, state)


class WorkerManager:
    """The processes of a program."""

    def __init__(self, processes: list[Any], state: Any) -> None:
        self._processes, self._state = processes, state

    def wait(self) -> None:
        """Wait for the end of the program. A node that fails ends it with an error."""
        try:
            while self._state.value == _RUNNING:
                if any(process.exitcode for process in self._processes):
                    self._state.value = _FAILED
                time.sleep(0.1)
        finally:
            for process in self._processes:
                if process.is_alive():
                    process.terminate()
            for process in self._processes:
                process.join(10)
                if process.is_alive():
                    process.kill()
        if self._state.value == _FAILED:
            raise RuntimeError("a node of the program failed; its traceback is above")


def _run_node(node: CourierNode, address: str, state: Any) -> None:
    global _state
    _state = state
    # exit cleanly, so oat's plasma store process ends, too
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    threading.Thread(target=_end_with_the_program, daemon=True).start()
    try:
        instance = node.constructor(*node.args, **node.kwargs)
        if not isinstance(node, PyClassNode):
            threading.Thread(target=_serve, args=(instance, address), daemon=True).start()
        if hasattr(instance, "run"):
            instance.run()
        while not isinstance(node, PyClassNode):  # other nodes may still call it
            time.sleep(1)
    except (KeyboardInterrupt, SystemExit):
        os._exit(0)
    except BaseException:  # noqa: BLE001 - every error must end the whole program
        traceback.print_exc()
        state.value = _FAILED
        os._exit(1)


def _end_with_the_program() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


def _serve(instance: Any, address: str) -> None:
    listener = Listener(f"{address}.new", family="AF_UNIX", backlog=64)
    os.rename(f"{address}.new", address)  # clients connect as soon as the file exists

    def answer(connection: Any) -> None:
        with connection:
            name, args, kwargs = connection.recv()
            try:
                result = (True, getattr(instance, name)(*args, **kwargs))
            except BaseException:  # noqa: BLE001 - the client raises it again
                result = (False, traceback.format_exc())
            try:
                connection.send(result)
            except (TypeError, AttributeError, ValueError):
                # callers ignore results that cannot be pickled, such as a process group
                connection.send((True, None))

    while True:
        threading.Thread(target=answer, args=(listener.accept(),), daemon=True).start()
