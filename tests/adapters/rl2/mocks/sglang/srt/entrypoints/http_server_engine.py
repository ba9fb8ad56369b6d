"""Server start of RL2's main branch, which waits until the server responds."""

from __future__ import annotations

import multiprocessing
import time
import urllib.request

from sglang.srt.entrypoints.http_server import launch_server
from sglang.srt.server_args import ServerArgs


def launch_server_process(args: ServerArgs) -> multiprocessing.Process:
    process = multiprocessing.Process(target=launch_server, args=(args,))
    process.start()
    while process.is_alive():
        try:
            with urllib.request.urlopen(f"{args.url()}/health_generate", timeout=5):
                return process
        except OSError:
            time.sleep(0.2)
    raise RuntimeError("the server ended before it responded")
