"""Play 1,000 episodes of misbehaving environments, with a server that drops connections.

python chaos_program.py PORT RECORD     # prints one line at the end
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence

from byte_tokenizer import ByteTokenizer

from gem_core import Generation, Limits, Renderer, Rollout, Sampling, Task, register
from gem_core.errors import PolicyError
from gem_core.records.file import RecordWriter

EPISODES = 1000
CONCURRENCY = 64
KINDS = ("ChaosInline", "ChaosThread", "ChaosAsync", "ChaosProcess")


def tasks() -> list[Task]:
    """Return the tasks. One in 25 runs in a process, which takes a second to start."""
    return [
        Task(f"chaos:{KINDS[3] if i % 25 == 0 else KINDS[i % 3]}", seed=i) for i in range(EPISODES)
    ]


class HTTPPolicy:
    """A policy that requests actions from a server."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.tokenizer = ByteTokenizer()

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        body = json.dumps({"prompt": self.tokenizer.decode(prompt_ids)}).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            head = b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
            writer.write(head % len(body) + body)
            head, _, answer = (await reader.read()).partition(b"\r\n\r\n")
        finally:
            writer.close()
        if b" 200 " not in head.split(b"\r\n")[0]:
            raise PolicyError(f"the server replied {head[:40]!r}")
        ids = self.tokenizer.encode(json.loads(answer)["action"], add_special_tokens=False)
        return Generation((*ids, self.tokenizer.eos_token_id), (-0.5,) * (len(ids) + 1))


def main(port: int, path: str) -> None:
    for kind in KINDS:
        register(f"chaos:{kind}", f"misbehaving:{kind}")
    limits = Limits(step_deadline=6.0, generate_deadline=60.0, retries=1)
    engine = Rollout(
        HTTPPolicy(port), Renderer(ByteTokenizer()), limits=limits, concurrency=CONCURRENCY
    )
    with RecordWriter(path) as record:
        episodes = engine.run_batch(tasks(), record.write)
    abandoned = engine.threads.abandoned
    summary = {"episodes": len(episodes), "abandoned": abandoned, "at": time.time()}
    sys.stdout.write(json.dumps(summary) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
