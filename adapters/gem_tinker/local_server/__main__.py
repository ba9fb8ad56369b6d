"""Serve the Tinker API over a small model on this machine, until Ctrl-C.

    python -m gem_tinker.local_server --model tiny --port 8011

Then, in another terminal: TINKER_BASE_URL=http://127.0.0.1:8011 TINKER_API_KEY=tml-local
"""

from __future__ import annotations

import argparse
import sys
import threading
from contextlib import suppress

from gem_tinker.local_server.http import LocalServer


def main() -> None:
    """Run the server."""
    parser = argparse.ArgumentParser(prog="python -m gem_tinker.local_server", description=__doc__)
    parser.add_argument("--model", default="tiny", help="model folder, hub name, tiny or smollm2")
    parser.add_argument("--port", type=int, default=8011)
    parser.add_argument("--folder", default="runs/tinker_server", help="where checkpoints are")
    args = parser.parse_args()
    with (
        suppress(KeyboardInterrupt),
        LocalServer(args.model, args.folder, port=args.port) as server,
    ):
        sys.stdout.write(f"serving {args.model} at {server.url}; Ctrl-C stops it\n")
        sys.stdout.flush()
        threading.Event().wait()


if __name__ == "__main__":
    main()
