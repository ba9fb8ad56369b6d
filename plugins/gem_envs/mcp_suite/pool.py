"""Pool: slots with running servers, one slot per running episode.

A slot keeps its servers between episodes; only its data is replaced. Starting a server takes about
a second, replacing the data takes milliseconds.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from gem_envs.mcp_suite.scratch import scratch_folder
from gem_tools.mcp import McpTools
from gem_tools.sandbox.homes import remove_tree
from gem_tools.sandbox.uids import next_uid
from gem_tools.tool import Tool

__all__ = ["Family", "Slot", "acquire", "release"]

_FIRST_UID = 1_700_000_000
_SECONDS_TO_START = 300.0  # dozens of servers may start at once on a busy machine
# `-m` would import modules from the working folder, where anyone may have left a typing.py.
_TIME_SERVER = (
    "import sys; sys.path = [p for p in sys.path if p]; from mcp_server_time import main; main()"
)
_numbers = itertools.count()
_free: dict[tuple[int, str], list[Slot]] = {}
_time: dict[int, McpTools] = {}
_lock = threading.Lock()


class Family(ABC):
    """A kind of data with its servers."""

    name: str

    @abstractmethod
    def servers(self, slot: Slot) -> Mapping[str, Mapping[str, Any]]:
        """Return the configuration of the servers of a slot."""

    @abstractmethod
    def prepare(self, slot: Slot, setup: Any) -> None:
        """Fill the empty folder of a slot with the initial data of an episode."""

    @abstractmethod
    def state(self, slot: Slot) -> Any:
        """Return what the checks of this family read."""

    def end(self, slot: Slot) -> None:  # noqa: B027 - most families have nothing to do
        """End what the slot keeps running besides its servers."""


class Slot:
    """A folder, the servers that see it, and their tools."""

    def __init__(self, family: Family) -> None:
        self.number = next(_numbers)
        self.family = family
        self.uid = next_uid(_FIRST_UID) if os.geteuid() == 0 else 0  # the box maps this user
        self.folder = os.path.join(scratch_folder(), f"slot-{self.number}")
        os.mkdir(self.folder)
        self.own(self.folder)
        self.setup: Any = None
        """The setup of the running episode."""
        self.busy = False
        """Whether a call runs or reached its deadline: a server may still work on it."""
        self.toolset = McpTools(family.servers(self), share=False, start_deadline=_SECONDS_TO_START)

    def begin(self, setup: Any) -> dict[str, Tool]:
        """Replace the data by that of a new episode; return the tools by name."""
        for name in os.listdir(self.folder):
            path = os.path.join(self.folder, name)
            if os.path.isdir(path) and not os.path.islink(path):
                remove_tree(path)
            else:
                os.unlink(path)
        self.family.prepare(self, setup)
        tools = [*self.toolset.tools(), *_distractors().tools()]
        return {tool.name: tool for tool in tools}

    def own(self, *paths: str) -> None:
        """Give files to the user of the servers."""
        if self.uid:
            for path in paths:
                os.chown(path, self.uid, self.uid, follow_symlinks=False)

    def own_all(self) -> None:
        """Give everything in the folder to the user of the servers."""
        if self.uid:
            for parent, folders, files in os.walk(self.folder):
                self.own(*(os.path.join(parent, name) for name in (*folders, *files)))


def acquire(family: Family) -> Slot:
    """Return a slot that no other episode uses."""
    with _lock:
        free = _free.setdefault((os.getpid(), family.name), [])
        if free:
            return free.pop()
    return Slot(family)


def release(slot: Slot) -> None:
    """Return a slot to the pool, or end it if a server may still work on a call."""
    if slot.busy:
        slot.toolset.close()
        slot.family.end(slot)
        remove_tree(slot.folder)
        return
    with _lock:
        _free.setdefault((os.getpid(), slot.family.name), []).append(slot)


def _distractors() -> McpTools:
    """Return the tools of the time server, which no task needs and all episodes share."""
    with _lock:
        if os.getpid() not in _time:
            arguments = ["-c", _TIME_SERVER, "--local-timezone", "UTC"]
            _time[os.getpid()] = McpTools(
                {"time": {"command": sys.executable, "args": arguments}},
                start_deadline=_SECONDS_TO_START,
            )
        return _time[os.getpid()]
