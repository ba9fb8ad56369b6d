"""Ports: a free TCP port for a framework that needs a number in advance."""

from __future__ import annotations

import random
import socket

__all__ = ["free_port"]


def free_port() -> int:
    """Return a TCP port of this machine that is free now.

    Linux does not give ports of this range to programs that ask for any free port. So the port
    stays free until its user has started.
    """
    for port in random.SystemRandom().sample(range(20_000, 30_000), 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError("none of 100 TCP ports between 20000 and 30000 is free")
