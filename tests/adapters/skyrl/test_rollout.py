"""gem's generator on a mock of SkyRL's inference client: requests, versions, errors, records."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from gem_conformance import CASES
from skyrl.train.generators.base import BatchMetadata, TrajectoryID
from skyrl_on_cpu import FileEngine
from worlds import ECHO, MOODY

from gem_core import hookimpl
from gem_core.errors import EngineError
from gem_core.plugins.manager import register_plugin, unregister_plugin
from gem_core.policies.tiny import load_tiny
from gem_core.records.file import read_episodes
from gem_core.types import Episode, StopReason
from gem_skyrl import GemConfig
from gem_skyrl.config import skyrl_config
from gem_skyrl.conformance import SkyRLHarness
from gem_skyrl.convert import PLAYED
from gem_skyrl.rollout import GemGenerator

Change = Callable[[dict[str, Any]], dict[str, Any]]


class Client(FileEngine):
    """The tiny model as SkyRL's client. `change` maps its output to another."""

    def __init__(self, path: str, change: Change = lambda output: output) -> None:
        super().__init__(path)
        self.weight_version, self.change = 1, change
        self.requests: list[dict[str, Any]] = []
        self.finished: list[str] = []

    async def generate(self, input_batch: Any, model: str | None = None) -> Any:
        self.requests.append({**input_batch, "model": model})
        return self.change(await super().generate(input_batch, model))

    async def finish_session(self, session_id: str) -> None:
        self.finished.append(session_id)


def generator_of(client: Client, model: str, *settings: str, **fields: Any) -> GemGenerator:
    config = GemConfig(**{"env_id": ECHO, "max_turn_tokens": 6, **fields})
    composed = skyrl_config(config, [f"trainer.policy.model.path={model}", *settings])
    return GemGenerator(config, composed, client, load_tiny()[1])


def generate(
    generator: GemGenerator,
    seeds: Sequence[int],
    step: int = 1,
    phase: Any = "train",
    **sampling: Any,
) -> Any:
    params = {"temperature": 1.0, "logprobs": 1, "max_tokens": 64, **sampling}
    batch = {
        "prompts": [[] for _ in seeds],
        "env_extras": [{"seed": seed} for seed in seeds],
        "sampling_params": params,
        "trajectory_ids": [TrajectoryID(str(seed), 0) for seed in seeds],
        "batch_metadata": BatchMetadata(global_step=step, training_phase=phase),
    }
    return asyncio.run(generator.generate(batch))


def episodes_of(output: Any) -> list[Episode]:
    return [episode for episode, _ in output[PLAYED]]


def test_turns_of_an_episode_share_a_session_and_a_cache_salt(model: str) -> None:
    client = Client(model)
    episodes = episodes_of(generate(generator_of(client, model), [2, 5]))
    assert [len(e.turns) for e in episodes] == [3, 3]
    sessions = [request["session_ids"][0] for request in client.requests]
    assert len(set(sessions)) == 2 and sorted(set(sessions)) == sorted(client.finished)
    assert {request["cache_salt"] for request in client.requests} == {f"{model}@1"}
    assert {request["model"] for request in client.requests} == {model}
    assert {r["sampling_params"]["max_tokens"] for r in client.requests} == {6}


def test_turn_ends_at_the_smaller_cap_and_at_every_stop_token(model: str) -> None:
    """SkyRL's caps of training and evaluation differ; `additional_kwargs` may have stop tokens."""
    client = Client(model)
    generator = generator_of(client, model, max_turn_tokens=5)
    generate(generator, [0], max_tokens=3, stop_token_ids=[7], phase="eval")
    assert client.requests[0]["sampling_params"]["max_tokens"] == 3
    stop = client.requests[0]["sampling_params"]["stop_token_ids"]
    assert stop == sorted([7, generator.renderer.turn_end])
    generate(generator, [0])
    assert client.requests[-1]["sampling_params"]["max_tokens"] == 5


def test_salt_can_be_switched_off(model: str) -> None:
    client = Client(model)
    generate(generator_of(client, model, "generator.use_cache_salt=false"), [0])
    assert client.requests[0]["cache_salt"] is None


def test_turns_record_the_update_of_their_weights(model: str) -> None:
    """SkyRL's client counts its syncs from 1, also in a run that resumes after 7 updates."""
    client = Client(model)
    generator = generator_of(client, model)
    assert {t.versions for e in episodes_of(generate(generator, [0], 8)) for t in e.turns} == {
        (7, 7)
    }

    def syncs(output: dict[str, Any]) -> dict[str, Any]:
        client.weight_version = 3
        return output

    client.weight_version, client.change = 2, syncs
    (episode,) = episodes_of(generate(generator, [0], 9))
    assert episode.turns[0].versions == (8, 9), "the weights changed during the generation"


def test_missing_logprobs_end_the_run(model: str) -> None:
    client = Client(model, lambda output: {**output, "response_logprobs": None})
    with pytest.raises(EngineError, match="0 logprobs for"):
        generate(generator_of(client, model), [0])


def test_broken_engine_ends_the_run(model: str) -> None:
    def fail(output: dict[str, Any]) -> dict[str, Any]:
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        generate(generator_of(Client(model, fail), model), [0])


def test_aborted_request_fails_its_episode_only(model: str) -> None:
    answers = iter(["abort", *["stop"] * 20])
    client = Client(model, lambda output: {**output, "stop_reasons": [next(answers)]})
    output = generate(generator_of(client, model), [0, 3])
    assert sorted(e.failed for e in episodes_of(output)) == [False, True]
    assert output["is_last_step"] == [True, True]
    assert sorted(map(any, output["loss_masks"])) == [False, True]


def test_failing_environment_fails_its_episode_only(model: str) -> None:
    output = generate(generator_of(Client(model), model, env_id=MOODY), [0, 1])
    assert [e.stop for e in episodes_of(output)] == [StopReason.TERMINATED, StopReason.ENV_ERROR]
    assert sum(map(sum, output["rewards"])) == pytest.approx(episodes_of(output)[0].total_reward)


def test_records_have_evaluations_and_episodes_that_were_not_trained(
    model: str, tmp_path: Path
) -> None:
    record = str(tmp_path / "episodes.jsonl")
    generator = generator_of(Client(model), model, record=record, seeds=8, eval_seeds=[70])
    trained = episodes_of(generate(generator, [0, 1]))[:1]
    generate(generator, [70], phase="eval")
    generator.records.trained(trained, [[0.5] * len(trained[0].turns)], 3)
    generator.close()
    infos = {e.seed: e.final_info for e in read_episodes(record)}
    assert infos[70]["evaluation"] and infos[0]["update"] == 3
    assert not {"update", "evaluation"} & set(infos[1])


def test_context_is_that_of_the_smallest_cap(model: str) -> None:
    sizes = ("generator.max_input_length=100", "generator.sampling_params.max_generate_length=20")
    assert generator_of(Client(model), model, *sizes).max_context == 120
    assert generator_of(Client(model), model, *sizes, max_context=90).max_context == 90
    engine = "generator.inference_engine.engine_init_kwargs.max_model_len=80"
    assert generator_of(Client(model), model, *sizes, engine).max_context == 80
    huge = "generator.max_input_length=1000000"
    assert generator_of(Client(model), model, huge).max_context == 2048


@pytest.mark.setting("`batch_end`", "works")
def test_plugins_get_the_whole_batch_once() -> None:
    class Plugin:
        batches: list[Sequence[Episode]] = []  # noqa: RUF012

        @hookimpl
        def batch_end(self, episodes: Sequence[Episode]) -> None:
            self.batches.append(episodes)

    plugin, case = Plugin(), next(c for c in CASES if c.name == "rewritten history")
    register_plugin(plugin, "counts-batches")
    try:
        SkyRLHarness().train(case)
    finally:
        unregister_plugin("counts-batches")
    assert [len(batch) for batch in plugin.batches] == [len(case.episodes)]
