"""RL2's main branch. Package indexes do not have it, so the tests need a checkout.

GEM_RL2_MAIN=path/of/RL2 tox -e rl2 -- tests/adapters/rl2/test_main_branch.py
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import rl2_programs

from gem_core.policies.tiny import tiny_model_path
from gem_core.records.file import read_episodes
from gem_core.training.metrics_file import read_metrics

CHECKOUT = os.environ.get("GEM_RL2_MAIN", "")
pytestmark = pytest.mark.skipif(
    not CHECKOUT,
    reason="needs a checkout that no index carries: RL2's main branch, named by GEM_RL2_MAIN",
)
run = partial(rl2_programs.run, runner="main_branch_on_cpu", path=CHECKOUT)

TABLE = """
from gem_conformance import report, run
from main_branch_harness import MainBranchHarness
results = run(harness := MainBranchHarness())
print(report(harness, results))
failed = [r for r in results if r.outcome == "FAILED"]
rejected = [r.case for r in results if r.outcome == "rejected"]
raise SystemExit(failed or not all(case.startswith("gae") for case in rejected))
"""


def test_conformance_table_passes(tmp_path: Path, say: Callable[[str], None]) -> None:
    program = tmp_path / "table.py"
    program.write_text(TABLE)
    output = run(tmp_path, program)
    say("\n".join(line for line in output.splitlines() if line.startswith("|")))
    assert "main branch |" in output


PARTIAL = """
import time
from gem_core import Env, Wrapper
from gem_core.env.wrapper_stack import register_wrapper
from gem_core.policies.tiny import tiny_model_path
from gem_rl2 import GemConfig
from gem_rl2.main_branch import train

class Uneven(Wrapper):
    execution = "thread"

    def on_step(self, action):
        if self.rng.random() < 0.5:
            time.sleep(1.0)
        return (yield self.env.step(action))

register_wrapper("uneven", Uneven)
config = GemConfig(
    "game:GuessTheNumber-v0-easy", seeds=32, wrappers=["uneven"], gamma=0.9, max_turn_tokens=24,
    record="episodes.jsonl", metrics="metrics.jsonl",
)
train(
    config,
    [
        f"actor.model_name={tiny_model_path()}",
        "actor.max_length_per_device=1024",
        "actor.optimizer.lr=2e-3",
        "rollout.train.prompts_per_rollout=8",
        "rollout.train.partial_rollout=true",
        "trainer.total_steps=4",
        "trainer.experiment_name=test",
        "trainer.use_wandb=false",
    ],
)
"""


def test_partial_rollouts_train_on_the_sampled_tokens(tmp_path: Path) -> None:
    """Episodes with slow steps outlast an update and resume with newer weights."""
    program = tmp_path / "partial.py"
    program.write_text(PARTIAL)
    output = run(tmp_path, program)
    assert [m["step"] for m in read_metrics(tmp_path)] == [0, 1, 2, 3]
    episodes = list(read_episodes(tmp_path / "episodes.jsonl"))
    assert not any(e.failed for e in episodes)
    spans = {
        e.turns[-1].versions[1] - e.turns[0].versions[0]
        for e in episodes
        if e.turns and e.turns[-1].versions
    }
    assert max(spans) > 0, "no episode outlasted an update"
    drift = [float(x) for x in re.findall(r"actor/llm_old_approx_kl: (\S+?),", output)]
    assert len(drift) == 4
    assert all(abs(x) < 0.05 for x in drift), "RL2's logprobs differ from the server's"


CARRIED = """
import asyncio, itertools
import RL2.trainer.ppo as rl2_ppo
import RL2.workers.rollout as rl2_rollout
from gem_conformance import CASES
from gem_core.types import Episode, StopReason, Turn
from gem_core.adapter_kit.patching import patched
from main_branch_harness import MainBranchRun, Replay, ReplayedState, no_request

# the rewards of each seed's two episodes, whose tokens are equal
rewards = {0: [0.0, 1.0], 1: [0.0, 0.0], 2: [1.0, 0.0], 3: [0.0, 1.0], 4: [0.0, 0.0]}

class DelayedState(ReplayedState):
    # the first episode of seed 0 ends when seed 4 starts; those of seed 4 never end
    async def episode(self, task, *args):
        seed = task.seed
        reward = rewards[seed].pop(0)
        if seed == 0 and rewards[0]:
            await seed_4_started.wait()
        if seed == 4:
            seed_4_started.set()
            await asyncio.Event().wait()
        if FAILED:
            return Episode("game:G", seed, (), StopReason.ENV_ERROR)
        ids = {"added_ids": (1, 2, 3), "action_ids": (5,), "logprobs": (-0.5,)}
        turn = Turn((), "5", reward, restarted=True, **ids)
        return Episode("game:G", seed, (turn,), StopReason.TERMINATED)

def rewards_and_advantages(config, batch):
    tensors, cu_seqs = batch
    rl2_ppo.compute_advantages(config, tensors, cu_seqs, 1)
    advantages = tensors["advantages"].sum(-1).round(decimals=3)
    return sorted(zip(tensors["rewards"].sum(-1).tolist(), advantages.tolist()))

async def two_steps(ready, rollout):
    global seed_4_started
    seed_4_started = asyncio.Event()
    first = rewards_and_advantages(ready.settings, await rollout(True, 1))
    waiting = [[sample.status.value for sample in group.samples] for group in rollout.sample_buffer]
    assert waiting == [["aborted", "done"]], waiting
    return first, rewards_and_advantages(ready.settings, await rollout(True, 2))

with MainBranchRun(next(c for c in CASES if c.estimator == "grpo")) as ready:
    ready.state.__class__ = DelayedState
    config = ready.settings.rollout
    config.train.prompts_per_rollout, config.train.responses_per_prompt = 2, 2
    config.train.partial_rollout, config.train.dynamic_filtering = True, not FAILED
    rollout = Replay(config, ready.state)
    rollout.sample_buffer, rollout.worker_urls = [], []
    seeds = iter(range(5))

    def group(seed):
        row = {"extra_info": {"seed": seed}}
        return rl2_rollout.SampleGroup(config.train, rollout.tokenizer, row)

    rollout.train_dataloader = lambda size: [group(seed) for seed in itertools.islice(seeds, size)]
    with patched(rl2_rollout, "async_request", no_request):
        print("steps", *asyncio.run(two_steps(ready, rollout)))
    print("waiting", len(ready.state.ledger))
"""


@pytest.mark.parametrize("failed", [False, True], ids=["finished", "failed"])
def test_episodes_with_equal_ids_keep_their_own_advantages_across_updates(
    tmp_path: Path, failed: bool
) -> None:
    """RL2 makes an update while one of seed 0's episodes is done and the other one is running.

    It drops seed 1, whose returns are equal, unless the episodes failed.
    """
    program = tmp_path / "carried.py"
    program.write_text(f"FAILED = {failed}\n{CARRIED}")
    output = run(tmp_path, program)
    pair = [(0.0, 0.0)] * 2 if failed else [(0.0, -1.0), (1.0, 1.0)]
    expected = [sorted(pair * (2 if failed else 1)), sorted(pair * 2)]
    assert f"steps {expected[0]} {expected[1]}" in output
    assert "waiting 0" in output


ENDED = """
import asyncio, os, signal, sys
from gem_core import Env, register
from gem_core.policies.tiny import tiny_model_path
from gem_rl2 import GemConfig
from gem_rl2.main_branch import MainBranchTrainer, compose
import RL2.trainer.ppo as rl2_ppo

open_loops, created, steps = {}, set(), []

class AsyncEcho(Env):
    action_example = "anything"

    async def on_reset(self, options):
        open_loops[id(self)] = asyncio.get_running_loop()
        created.add(id(self))
        return "Say anything.", {}

    async def on_step(self, action):
        steps.append(action)
        if len(steps) == 9 and sys.argv[1] == "Ctrl-C":
            await asyncio.sleep(1)  # until the other three episodes are finished
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.Event().wait()
        return "", 0.5, True, False, {}

    async def on_close(self):
        # a real environment, such as one with a connection, can close only on its own event loop
        if asyncio.get_running_loop() is open_loops[id(self)]:
            del open_loops[id(self)]

register("test:AsyncEcho-v0", AsyncEcho)
rl2_ppo.initialize_global_process_group(True)
settings = [
    f"actor.model_name={tiny_model_path()}",
    "actor.max_length_per_device=512",
    "rollout.train.prompts_per_rollout=4",
    "trainer.total_steps=2",
    "trainer.use_wandb=false",
    "trainer.experiment_name=test",
]
config = GemConfig("test:AsyncEcho-v0", seeds=8, max_turn_tokens=6)
trainer = MainBranchTrainer(compose(settings), config)

def fails(*args):
    raise RuntimeError("out of memory")

if sys.argv[1] == "failure":
    trainer.actor.ppo_update = fails
try:
    asyncio.run(trainer.train())
except (KeyboardInterrupt, RuntimeError) as error:
    print("ended by", type(error).__name__)
print("open", len(open_loops), "of", len(created))
"""


@pytest.mark.parametrize(
    ("cause", "error"), [("Ctrl-C", "KeyboardInterrupt"), ("failure", "RuntimeError")]
)
def test_async_environments_are_closed_when_a_run_fails(
    tmp_path: Path, cause: str, error: str
) -> None:
    program = tmp_path / "ended.py"
    program.write_text(ENDED)
    output = run(tmp_path, program, cause)
    assert f"ended by {error}" in output
    assert "open 0 of 5" in output  # of four episodes, and of the trial before training
    assert "never awaited" not in output


def test_environment_file_plays_in_stock_rl2(tmp_path: Path) -> None:
    """RL2's own program and advantages, with gem's `generate` in an environment file."""
    (tmp_path / "env.py").write_text(
        "from gem_rl2 import GemConfig\n"
        "from gem_rl2.main_branch import generate_function\n"
        "config = GemConfig('game:GuessTheNumber-v0-easy', seeds=8, max_turn_tokens=16)\n"
        "generate = generate_function(config)\n"
    )
    (tmp_path / "seeds.jsonl").write_text(
        "".join(f'{{"extra_info": {{"seed": {seed}}}}}\n' for seed in range(8))
    )
    program = tmp_path / "stock.py"
    program.write_text(
        "import RL2.workers.rollout as rollout\n"
        "from gem_rl2.main_branch import announced_as_worker\n"
        "from RL2.trainer.ppo import main\n"
        "# newer routers respond to RL2's own request with 404\n"
        "rollout.sync_request = announced_as_worker(rollout.sync_request)\n"
        "main()\n"
    )
    output = run(
        tmp_path,
        program,
        "--config-path",
        f"{CHECKOUT}/RL2/trainer/config",
        f"actor.model_name={tiny_model_path()}",
        "actor.max_length_per_device=1024",
        "rollout.env_path=env.py",
        "rollout.train.path=seeds.jsonl",
        "rollout.test.path=seeds.jsonl",
        "rollout.train.prompts_per_rollout=4",
        "rollout.train.responses_per_prompt=2",
        "rollout.train.sampling_params.max_new_tokens=16",
        "trainer.total_steps=1",
        "trainer.use_wandb=false",
        "trainer.experiment_name=test",
    )
    assert "estimator: reinforce" in output
    assert "actor/llm_old_approx_kl" in output


PAUSED = """
import asyncio
from gem_core.types import FinishReason, Sampling
from gem_rl2.main_branch import Gate, PausablePolicy

requests, responses = [], [([7, 8], "abort"), ([], "abort"), ([9, 2], "stop")]

async def ask(ids, params):
    requests.append((list(ids), params["max_new_tokens"]))
    new_ids, reason = responses[len(requests) - 1]
    logprobs = [[-0.5, i, None] for i in new_ids]
    return {"meta_info": {"finish_reason": {"type": reason}, "output_token_logprobs": logprobs}}

async def turn():
    step, gate = [0], Gate()
    policy = PausablePolicy(gate, ask, {}, lambda: step[0])
    playing = asyncio.ensure_future(policy.generate([1, 1], Sampling(max_tokens=6)))
    for number in (1, 2):
        await gate.closed()
        assert len(requests) == number and not playing.done(), "a request during a pause"
        step[0] = number
        gate.open()
    return await playing

generation = asyncio.run(turn())
assert requests == [([1, 1], 6), ([1, 1, 7, 8], 4), ([1, 1, 7, 8], 4)], requests
assert generation.finish is FinishReason.STOP, generation
print("ids", generation.ids, "versions", generation.versions)
"""


def test_paused_turn_resumes_with_its_tokens(tmp_path: Path) -> None:
    program = tmp_path / "paused.py"
    program.write_text(PAUSED)
    assert "ids (7, 8, 9, 2) versions (0, 2)" in run(tmp_path, program)


REJECTED = """
from gem_core.errors import ConfigError
from gem_rl2 import GemConfig
from gem_rl2.main_branch import check_settings, compose

settings = compose(
    [
        "rollout.train.partial_rollout=true",
        "rollout.env_path=mine.py",
        "rollout.train.prompts_per_rollout=8",
        "trainer.load_ckpt_from=latest",
    ]
)
config = GemConfig("game:GuessTheNumber-v0-easy", max_turn_tokens=6, episode_deadline=9.0)
try:
    check_settings(settings, config)
except ConfigError as error:
    print(error)
"""


def test_all_rejected_settings_are_reported_at_once(tmp_path: Path) -> None:
    program = tmp_path / "rejected.py"
    program.write_text(REJECTED)
    output = run(tmp_path, program)
    assert "3 settings are rejected" in output and "resume with the release" in output
    assert "rollout.env_path=mine.py" in output and "partial_rollout=true pauses episodes" in output
