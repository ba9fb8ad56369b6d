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

from gem_core.record import read_episodes

CHECKOUT = os.environ.get("GEM_RL2_MAIN", "")
pytestmark = pytest.mark.skipif(
    not CHECKOUT, reason="needs a checkout that no index carries: RL2's main branch, named by GEM_RL2_MAIN"
)

TABLE = """
from gem_core.conformance import report, run
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
    assert not any(e.void for e in episodes)
    spans = {e.turns[-1].versions[1] - e.turns[0].versions[0] for e in episodes if e.turns and e.turns[-1].versions}
    assert max(spans) > 0, "no episode was carried over an update"
    assert all(abs(m["drift"]) < 0.05 for m in metrics), "RL2's own logprobs of the sampled ids are far from the server's"


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
