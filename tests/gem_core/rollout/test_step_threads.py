"""Step threads: at most `size` run at once, abandoned ones are replaced, no call is lost."""

from __future__ import annotations

import asyncio
import threading
import time
from queue import SimpleQueue
from typing import Any

import pytest

from gem_core.rollout.step_threads import StepThreads


def test_calls_run_on_threads_and_return_results_and_errors() -> None:
    def fail() -> None:
        raise KeyError("x")

    def exits() -> None:
        raise SystemExit(2)

    async def main() -> None:
        threads = StepThreads(2)
        assert await threads.call(divmod, 7, 2) == (3, 1)
        assert await threads.call(lambda: threading.current_thread() is not threading.main_thread())
        with pytest.raises(KeyError, match="x"):
            await threads.call(fail)
        with pytest.raises(RuntimeError, match="SystemExit was raised"):
            await threads.call(exits)
        with pytest.raises(RuntimeError, match="StopIteration"):
            await threads.call(next, iter(()))
        assert await threads.call(len, "abc") == 3
        assert threads.abandoned == 0
        threads.close()

    asyncio.run(main())


@pytest.mark.parametrize("size", [1, 3])
def test_at_most_size_calls_run_at_once(size: int) -> None:
    lock = threading.Lock()
    running, most = [0], [0]
    together = threading.Barrier(size, timeout=60)

    def work(i: int) -> int:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        together.wait()
        time.sleep(0.005)
        with lock:
            running[0] -= 1
        return i

    async def main() -> list[Any]:
        threads = StepThreads(size)
        return await asyncio.gather(*(threads.call(work, i) for i in range(9)))

    assert asyncio.run(main()) == list(range(9))
    assert most[0] == size


def test_a_cancelled_call_frees_its_slot() -> None:
    gate = threading.Event()

    async def main() -> None:
        threads = StepThreads(1)
        stuck = asyncio.ensure_future(threads.call(gate.wait, 10))
        await asyncio.sleep(0.01)
        stuck.cancel()
        assert await asyncio.wait_for(threads.call(len, "ab"), 5) == 2
        assert threads.abandoned == 1

    asyncio.run(main())
    gate.set()


def test_a_cancelled_waiter_passes_its_turn_on() -> None:
    """It is cancelled in the moment its turn comes."""
    gate = threading.Event()

    async def main() -> int:
        threads = StepThreads(1)

        async def first() -> None:
            await threads.call(gate.wait, 10)
            second.cancel()  # its turn has come, but it has not run yet

        busy = asyncio.ensure_future(first())
        await asyncio.sleep(0.01)
        second, third = (asyncio.ensure_future(threads.call(len, text)) for text in ("a", "abc"))
        await asyncio.sleep(0)
        gate.set()
        length = await asyncio.wait_for(third, 5)
        await busy
        return length  # type: ignore[no-any-return]

    assert asyncio.run(main()) == 3


@pytest.mark.parametrize("closed", [False, True], ids=["loop running", "loop closed"])
def test_late_receives_the_result_of_a_cancelled_call(closed: bool) -> None:
    gate, late_results = threading.Event(), SimpleQueue[Any]()

    def made() -> str:
        gate.wait(10)
        return "made"

    async def main() -> None:
        threads = StepThreads(1)
        assert await threads.call(len, "ab", late=late_results.put) == 2
        waiting = asyncio.ensure_future(
            threads.call(made, late=lambda x: late_results.put((x, threading.current_thread())))
        )
        await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.wait({waiting})
        if not closed:
            gate.set()
            await asyncio.sleep(0.2)

    asyncio.run(main())
    gate.set()
    result, thread = late_results.get(timeout=5)
    assert result == "made"
    assert thread is not threading.main_thread()
    assert late_results.empty(), "an awaited result is not late"


def test_late_receives_a_result_that_arrives_during_cancellation() -> None:
    late_results = SimpleQueue[Any]()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        soon = loop.call_soon_threadsafe
        loop.call_soon_threadsafe = lambda settle, *args: soon(
            lambda: (settle(*args), waiting.cancel())
        )  # type: ignore
        threads = StepThreads(1)
        waiting = asyncio.ensure_future(threads.call(len, "abc", late=late_results.put))
        await asyncio.wait({waiting})
        assert waiting.cancelled()
        assert await threads.call(len, "ab") == 2
        assert threads.abandoned == 0

    asyncio.run(main())
    assert late_results.get(timeout=5) == 3


def test_threads_serve_several_event_loops_in_turn() -> None:
    threads = StepThreads(2)
    for _ in range(3):
        assert asyncio.run(threads.call(len, "ab")) == 2
    threads.close()
