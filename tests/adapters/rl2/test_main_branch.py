"""RL2's main branch, which is on no package index: run where GEM_RL2_MAIN names a checkout of it.

GEM_RL2_MAIN=path/of/RL2 tox -e rl2 -- tests/adapters/rl2/test_main_branch.py
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from test_training import EXAMPLES, run

from gem_core.records.file import read_episodes

CHECKOUT = os.environ.get("GEM_RL2_MAIN", "")
pytestmark = pytest.mark.skipif(
    not CHECKOUT, reason="needs a checkout that no index carries: RL2's main branch, named by GEM_RL2_MAIN"
)

TABLE = """
from gem_core.adapter_kit.conformance import report, run
from gem_rl2.conformance import RL2Harness
results = run(harness := RL2Harness())
print(report(harness, results))
failed = [r for r in results if r.outcome == "FAILED"]
refused = [r.case for r in results if r.outcome == "refused"]
raise SystemExit(failed or refused != ["gae"])
"""


def test_the_table_holds(tmp_path: Path, say: Callable[[str], None]) -> None:
    program = tmp_path / "table.py"
    program.write_text(TABLE)
    said = run(tmp_path, program, RL2_CHECKOUT=CHECKOUT)
    say("\n".join(line for line in said.splitlines() if line.startswith("|")))
    assert "main branch |" in said


def test_partial_rollouts_train_on_what_was_sampled(tmp_path: Path) -> None:
    """The recipe of uneven steps with `partial_rollout`: episodes outlast an update, go on with newer weights, none is lost."""
    out = tmp_path / "run"
    arguments = ["--updates", "4", "--episodes", "8", "--max-length", "1024", "--slow", "0.5", "--seconds", "1.0"]
    run(tmp_path, EXAMPLES / "rl2_async.py", *arguments, "--out", str(out), RL2_CHECKOUT=CHECKOUT)
    metrics = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [m["step"] for m in metrics] == [0, 1, 2, 3]
    episodes = list(read_episodes(out / "episodes.jsonl"))
    assert not any(e.failed for e in episodes)
    spans = {e.turns[-1].versions[1] - e.turns[0].versions[0] for e in episodes if e.turns and e.turns[-1].versions}
    assert max(spans) > 0, "no episode was carried over an update"
    assert all(abs(m["drift"]) < 0.05 for m in metrics), "RL2's own logprobs of the sampled ids are far from the server's"


CARRIED = """
import asyncio, itertools
import RL2.trainer.ppo as rl2_ppo
import RL2.workers.rollout as rl2_rollout
from gem_core.adapter_kit.conformance import CASES
from gem_core.types import Episode, StopReason, Turn
from gem_rl2.conformance import _nothing, _Ready, _Replay, _Rollout
from gem_rl2.interface import replaced

pay = {0: [0.0, 1.0], 1: [0.0, 0.0], 2: [1.0, 0.0], 3: [0.0, 1.0], 4: [0.0, 0.0]}  # a start's two episodes, else alike

class Late(_Replay):
    # the first episode of start 0 ends when start 4 has begun, and those of start 4 never
    async def episode(self, number, seed, *args, **kwargs):
        reward = pay[seed].pop(0)
        if seed == 0 and pay[0]:
            await late.wait()
        if seed == 4:
            late.set()
            await asyncio.Event().wait()
        turn = Turn((), "5", reward, added_ids=(1, 2, 3), restarted=True, action_ids=(5,), logprobs=(-0.5,))
        return Episode("game:G", seed, () if FAILED else (turn,), StopReason.ENV_ERROR if FAILED else StopReason.TERMINATED)

def credited(config, batch):
    tensors, cu_seqs = batch
    rl2_ppo.compute_advantages(config, tensors, cu_seqs, 1)
    return sorted(zip(tensors["rewards"].sum(-1).tolist(), tensors["advantages"].sum(-1).round(decimals=3).tolist()))

async def steps(ready, rollout):
    global late
    late = asyncio.Event()
    first = credited(ready.config, await rollout(True, 1))
    carried = [[sample.status.value for sample in group.samples] for group in rollout.sample_buffer]
    assert carried == [["aborted", "done"]], carried
    return first, credited(ready.config, await rollout(True, 2))

with _Ready(next(c for c in CASES if c.estimator == "grpo")) as ready:
    ready.plays.__class__ = Late
    config = ready.config.rollout
    config.train.prompts_per_rollout, config.train.responses_per_prompt = 2, 2
    config.train.partial_rollout, config.train.dynamic_filtering = True, not FAILED
    rollout = _Rollout(config, ready.plays)
    rollout.sample_buffer, rollout.worker_urls = [], []
    starts = iter(range(5))
    group = lambda seed: rl2_rollout.SampleGroup(config.train, rollout.tokenizer, {"extra_info": {"seed": seed}})
    rollout.train_dataloader = lambda size: [group(seed) for seed in itertools.islice(starts, size)]
    with replaced(rl2_rollout, "async_request", _nothing):
        print("credited", *asyncio.run(steps(ready, rollout)), "left", len(ready.plays.ledger))
"""


@pytest.mark.parametrize("failed", [False, True], ids=["paid for what no row shows", "failed"])
def test_episodes_that_look_alike_are_not_mistaken_when_groups_are_carried_over(tmp_path: Path, failed: bool) -> None:
    """Start 0 has one episode done and one under way when RL2 goes on without it; start 1 is filtered out if not failed."""
    program = tmp_path / "carried.py"
    program.write_text(f"FAILED = {failed}\n{CARRIED}")
    said = run(tmp_path, program, RL2_CHECKOUT=CHECKOUT)
    pair = [(0.0, 0.0)] * 2 if failed else [(0.0, -1.0), (1.0, 1.0)]
    expected = [sorted(pair * (2 if failed else 1)), sorted(pair * 2)]
    assert f"credited {expected[0]} {expected[1]} left 0" in said


ENDED = """
import asyncio, os, signal, sys
from gem_core import Env, register
from gem_core.policies.tiny import tiny_model_path
from gem_rl2 import GemPPOTrainer, GemSpec, compose, start_process_group

alive, made, steps = {}, set(), []

class Awaited(Env):
    action_example = "anything"

    async def on_reset(self, options):
        alive[id(self)] = asyncio.get_running_loop()
        made.add(id(self))
        return "Say anything.", {}

    async def on_step(self, action):
        steps.append(action)
        if len(steps) == 8 and sys.argv[1] == "Ctrl-C":
            await asyncio.sleep(1)  # after which the other three have nothing to do
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.Event().wait()
        return "", 0.5, True, False, {}

    async def on_close(self):
        if asyncio.get_running_loop() is alive[id(self)]:  # what is awaited, such as a connection, lives on its own loop only
            del alive[id(self)]

register("test:Awaited-v0", Awaited)
start_process_group()
settings = ["actor.max_length_per_device=512", "rollout.train.prompts_per_rollout=4", "trainer.total_steps=2"]
settings += [f"actor.model_name={tiny_model_path()}", "trainer.use_wandb=false", "trainer.experiment_name=test"]
trainer = GemPPOTrainer(compose(settings), GemSpec("test:Awaited-v0", seeds=8, max_turn_tokens=6))

def broken(*args):
    raise RuntimeError("out of memory")

if sys.argv[1] == "failure":
    trainer.actor.ppo_update = broken
try:
    trainer.run()
except (KeyboardInterrupt, RuntimeError) as error:
    print("ended by", type(error).__name__)
print("open", len(alive), "of", len(made))
"""


@pytest.mark.parametrize(("how", "by"), [("Ctrl-C", "KeyboardInterrupt"), ("failure", "RuntimeError")])
def test_awaited_environments_are_closed_however_a_run_ends(tmp_path: Path, how: str, by: str) -> None:
    program = tmp_path / "ended.py"
    program.write_text(ENDED)
    said = run(tmp_path, program, how, RL2_CHECKOUT=CHECKOUT)
    assert f"ended by {by}" in said
    assert "open 0 of 4" in said
    assert "never awaited" not in said


def test_an_environment_file_plays_in_stock_rl2(tmp_path: Path) -> None:
    """RL2's own program and advantages, with `generate = spec.generate` in an environment file."""
    from gem_core.policies.tiny import tiny_model_path

    (tmp_path / "env.py").write_text(
        "from gem_rl2 import GemSpec\n"
        "spec = GemSpec('game:GuessTheNumber-v0-easy', seeds=8, max_turn_tokens=16)\n"
        "generate = spec.generate\n"
    )
    (tmp_path / "starts.jsonl").write_text("".join(json.dumps({"extra_info": {"seed": s}}) + "\n" for s in range(8)))
    program = tmp_path / "stock.py"
    program.write_text(
        "import RL2.workers.rollout as rollout\n"
        "from gem_rl2.rollout import _with_workers\n"
        "from RL2.trainer.ppo import main\n"
        "rollout.sync_request = _with_workers(rollout.sync_request)  # else the router of today answers 404\n"
        "main()\n"
    )
    said = run(
        tmp_path,
        program,
        "--config-path",
        f"{CHECKOUT}/RL2/trainer/config",
        f"actor.model_name={tiny_model_path()}",
        "actor.max_length_per_device=1024",
        "rollout.env_path=env.py",
        "rollout.train.path=starts.jsonl",
        "rollout.test.path=starts.jsonl",
        "rollout.train.prompts_per_rollout=4",
        "rollout.train.responses_per_prompt=2",
        "rollout.train.sampling_params.max_new_tokens=16",
        "trainer.total_steps=1",
        "trainer.use_wandb=false",
        "trainer.experiment_name=test",
        RL2_CHECKOUT=CHECKOUT,
    )
    assert "estimator: reinforce" in said
    assert "actor/llm_old_approx_kl" in said
