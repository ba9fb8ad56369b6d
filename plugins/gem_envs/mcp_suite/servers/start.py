"""The first program in a server's box: it drops its rights and runs the server.

gem never imports it: `boxes.py` passes its text to an interpreter in the box.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import resource
import runpy
import struct
import sys

__all__ = ["main"]


def main() -> None:
    """Set the limits, the user and the filter; then run a script or a `module:function`."""
    settings = json.loads(sys.argv[1])
    for name, value in settings["limits"].items():
        resource.setrlimit(getattr(resource, name), (value, value))
    if settings["uid"]:
        os.setgroups([])
        os.setresgid(*[settings["uid"]] * 3)
        os.setresuid(*[settings["uid"]] * 3)
    program = bytes.fromhex(settings["seccomp"])
    if program:
        body = ctypes.create_string_buffer(program, len(program))
        head = struct.pack("@HxxxxxxQ", len(program) // 8, ctypes.addressof(body))
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(22, 2, ctypes.create_string_buffer(head, len(head)), 0, 0):
            raise SystemExit("cannot install the system call filter")
    server, sys.argv = settings["server"], [settings["server"], *settings["arguments"]]
    if server.endswith(".py"):
        runpy.run_path(server, run_name="__main__")
    else:
        module, _, function = server.partition(":")
        getattr(importlib.import_module(module), function)()


if __name__ == "__main__":
    main()
