"""Main branch: trains with RL2's main branch, which differs from the release of the same version.

    from gem_rl2 import GemConfig
    from gem_rl2.main_branch import train

or `torchrun --nproc_per_node=8 -m gem_rl2.main_branch +gem.env_id=... ...`.

The main branch calls `generate(config, tokenizer, router_url, sample)` of an environment to play an
episode. It can pause generation (`partial_rollout`): the episode then waits, RL2 sees it as aborted
and makes an update. When RL2 requests the episode again, it resumes with the tokens it has.

All code for the main branch is in this module.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hydra
import RL2.trainer.ppo as rl2_ppo
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from gem_core.adapter_kit.declaration import require
from gem_core.adapter_kit.patching import patched
from gem_core.adapter_kit.settings import reject
from gem_core.adapter_kit.trainer_rollout import try_environment
from gem_core.errors import ConfigError, EngineError
from gem_core.types import Episode, Generation, Sampling, Task
from gem_rl2 import ADAPTER
from gem_rl2.__main__ import main
from gem_rl2.config import GemConfig, longest_sequence, rejections, settings_folder
from gem_rl2.convert import generation_metrics, to_batch
from gem_rl2.ledger import Ledger, numbered
from gem_rl2.rollout import Ask, EnginePolicy, RolloutState, own_metrics_port, play, server_context
from gem_rl2.trainer import patched_trainer, process_group, write_data
from gem_rl2.updates import Worker

__all__ = ["MainBranchTrainer", "check_settings", "compose", "generate_function", "train"]

# Any, because type checkers see the release's module
rl2_rollout: Any = import_module("RL2.workers.rollout")
_ACTORS = ("RL2.workers.fsdp.actor", "RL2.workers.megatron.actor")
_REQUEST = "url endpoint method max_trials retry_delay kwargs"
"""The parameters of `sync_request` and `async_request`."""


def train(config: GemConfig, settings: Sequence[str]) -> MainBranchTrainer:
    """Train with RL2's main branch to the end and return the trainer.

    `settings`: RL2's own, as on its command line.
    """
    composed = compose(settings)
    with process_group(rl2_ppo.initialize_global_process_group, True):
        trainer = MainBranchTrainer(composed, config)
        asyncio.run(trainer.train())
    return trainer


def generate_function(config: GemConfig) -> Callable[..., Any]:
    """Return a `generate` function for an environment file, to train with RL2's own advantages.

    The file contains `generate = generate_function(GemConfig(...))`.
    """
    if config.schedule is not None and len(config.schedule.rounds) > 1:
        raise ConfigError(
            "an environment file does not know the step, so its horizon cannot grow; "
            "use MainBranchTrainer"
        )
    episodes = PausableState(config)

    async def generate(config: Any, tokenizer: Any, router_url: str, sample: Any) -> None:
        await episodes.generate(config, tokenizer, router_url, sample)
        episodes.forget()  # RL2 computes the advantages itself

    return generate


def compose(overrides: Sequence[str] = ()) -> Any:
    """Return RL2's PPO settings with overrides, as on its command line."""
    with hydra.initialize_config_dir(str(settings_folder()), version_base=None):
        # RL2 reads its backend from hydra's global config
        HydraConfig.instance().set_config(
            hydra.compose("ppo", overrides=list(overrides), return_hydra_config=True)
        )
        return hydra.compose("ppo", overrides=list(overrides))


def check_settings(settings: Any, config: GemConfig) -> None:
    """Raise one `ConfigError` that lists every RL2 setting gem does not support.

    `settings`: RL2's hydra config, as `compose` returns it.
    """
    require(ADAPTER)
    reject(
        [
            *rejections(_release_names(settings), config),
            (
                settings.rollout.train.partial_rollout and config.episode_deadline is not None,
                "partial_rollout=true pauses episodes during an update, and episode_deadline "
                "counts the pause; remove one of them",
            ),
            (
                settings.trainer.load_ckpt_from is not None,
                f"trainer.load_ckpt_from={settings.trainer.load_ckpt_from}: the main branch loads "
                "a checkpoint, but counts the updates from 1 again and plays with the weights of "
                "actor.model_name; resume with the release",
            ),
            (
                config.needs_values,
                f"advantage={config.advantage!r} needs a critic, which gem supports in the "
                "release only; use 'rebn', or the release",
            ),
        ]
    )


def _release_names(settings: Any) -> Any:
    """Return the settings under the names of the release."""
    data, rollout, actor = settings.rollout.train, settings.rollout, settings.actor

    def lengths(worker: Any) -> dict[str, Any]:
        return {
            "max_length_per_device": worker.get("max_length_per_device"),
            "max_inference_length_per_device": worker.max_inference_length_per_device,
            "sp_size": worker.get("cp_size", 1),
            "tp_size": worker.get("tp_size", 1),
        }

    return SimpleNamespace(
        adv=settings.adv,
        trainer=settings.trainer,
        train_data=data,
        test_data=rollout.test,
        rollout=SimpleNamespace(
            env_path=rollout.env_path,
            max_turns=1,
            train_sampling_params=data.sampling_params,
            test_sampling_params=rollout.test.sampling_params,
        ),
        actor=SimpleNamespace(
            model_name=actor.model_name,
            kl=actor.kl,
            freeze_steps=actor.get("freeze_steps", 0),
            **lengths(actor),
        ),
        ref_actor=SimpleNamespace(**lengths(settings.ref_actor)),
    )


class MainBranchTrainer(rl2_ppo.PPOTrainer):
    """PPOTrainer on gem's episodes, with gem's advantages; `train` is a coroutine, as in RL2."""

    rollout: MainBranchRollout

    def __init__(self, settings: Any, config: GemConfig) -> None:
        self.gem_config = config
        self._folder = tempfile.TemporaryDirectory(prefix="gem_rl2_")
        prepare_settings(settings, config, self._folder.name)
        try_environment(config)
        rollout = partial(
            MainBranchRollout, config=config, max_context=longest_sequence(_release_names(settings))
        )
        with patched(rl2_ppo, "initialize_rollout", rollout, "config"):
            super().__init__(settings)

    async def train(self) -> None:
        """Train to the end."""
        state = self.rollout.state
        actors = [
            Worker(sys.modules[name], None, "minibatches key process_group")
            for name in _ACTORS
            if name in sys.modules
        ]
        try:
            try:
                with patched_trainer(state, "config tensor_dict cu_seqs step", actors):
                    await super().train()
            finally:  # asynchronous environments are bound to this event loop
                await state.rest()
        finally:
            state.close()  # RL2 itself ends its processes
            self._folder.cleanup()


def prepare_settings(settings: Any, config: GemConfig, folder: str | Path) -> None:
    """Check RL2's settings, write the data files to `folder`, and set data paths and estimator."""
    check_settings(settings, config)
    settings.rollout.train.path, settings.rollout.test.path = write_data(config, Path(folder))
    settings.adv.estimator, settings.adv.gamma = "gem", config.gamma


class MainBranchRollout(rl2_rollout.Rollout):  # type: ignore[misc]
    """RL2's rollout with gem's episodes."""

    def __init__(self, settings: Any, config: GemConfig, max_context: int | None = None) -> None:
        context = min(
            filter(None, (max_context, server_context(settings.server_args))), default=None
        )
        self.state = PausableState(config, context)
        announced = announced_as_worker(rl2_rollout.sync_request)
        with (
            patched(rl2_rollout, "RouterArgs", own_metrics_port(rl2_rollout.RouterArgs)),
            patched(rl2_rollout, "sync_request", announced, _REQUEST),
        ):
            super().__init__(settings)

    def _prepare_environment(self) -> None:
        self.env = SimpleNamespace(generate=self.state.generate)

    async def __call__(self, train: bool, step: int) -> Any:
        self.state.updates, self.state.training = step - 1 if train else step, train
        request = rl2_rollout.async_request
        to_tensors = rl2_rollout.SampleGroup.to_all_tensor_dicts_and_metrics

        def request_and_pause(url: Any, endpoint: str, *args: Any, **kwargs: Any) -> Any:
            if endpoint == "pause_generation":
                self.state.gate.close()  # paused servers do not respond to requests
            return request(url, endpoint, *args, **kwargs)

        def with_numbers(group: Any) -> Any:
            tensors, metrics = to_tensors(group)
            samples = zip(group.samples, tensors)
            return [numbered(s.sample["gem"], sequences) for s, sequences in samples], metrics

        with (
            patched(rl2_rollout, "async_request", request_and_pause, _REQUEST),
            patched(rl2_rollout.SampleGroup, to_tensors.__name__, with_numbers, "self"),
        ):
            batch = await super().__call__(train, step)
        self.state.report(step, "train" if train else "test")
        return batch


class Gate:
    """Gate that is open while RL2's servers generate, and closed while RL2 pauses them."""

    def __init__(self) -> None:
        self._opened, self._closed = asyncio.Event(), asyncio.Event()
        self.open()

    def open(self) -> None:
        """Allow requests."""
        self._opened.set()
        self._closed.clear()

    def close(self) -> None:
        """Hold requests until the gate opens."""
        self._opened.clear()
        self._closed.set()

    async def opened(self) -> None:
        """Wait until the gate is open."""
        await self._opened.wait()

    async def closed(self) -> None:
        """Wait until the gate is closed."""
        await self._closed.wait()


class PausablePolicy(EnginePolicy):
    """RL2's SGLang router as a policy whose turns resume after a pause, with the new weights."""

    def __init__(self, gate: Gate, *args: Any) -> None:
        super().__init__(*args)
        self._gate = gate

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        version = self.updates()
        ids: list[int] = []
        logprobs: list[float] = []
        while True:
            await self._gate.opened()
            new_ids, new_logprobs, reason = await self.request(
                [*prompt_ids, *ids], sampling.max_tokens - len(ids)
            )
            ids += new_ids
            logprobs += new_logprobs
            if reason != "abort" or len(ids) >= sampling.max_tokens:
                return self.generation(ids, logprobs, reason, version)
            self._gate.close()


class OwnedLedger(Ledger):
    """Ledger that keeps an episode as long as RL2 keeps its sample, possibly for later steps."""

    def __init__(self) -> None:
        super().__init__()
        self._owners: dict[int, weakref.ref[Any]] = {}

    def own(self, number: int, owner: Any) -> None:
        """Set the sample that owns an episode."""
        self._owners[number] = weakref.ref(owner)

    def disown(self) -> None:
        """Forget the samples: the next `drop` returns all episodes."""
        self._owners.clear()

    def drop(self) -> list[Episode]:
        self._owners = {
            number: owner for number, owner in self._owners.items() if owner() is not None
        }
        lost = [number for number in self._waiting if number not in self._owners]
        return [self._waiting.pop(number) for number in lost]


class PausableState(RolloutState):
    """Episodes that RL2 may pause and request again."""

    ledger: OwnedLedger

    def __init__(self, config: GemConfig, max_context: int | None = None) -> None:
        super().__init__(config, max_context)
        self.ledger, self.gate = OwnedLedger(), Gate()
        self.training = True
        """Whether RL2 trains on the episodes it requests, or evaluates."""
        self._running: dict[int, asyncio.Task[Episode]] = {}

    async def generate(self, config: Any, tokenizer: Any, router_url: str, sample: Any) -> None:
        """Play a sample to its end, or until RL2 pauses; RL2 calls it.

        `config`: the section `rollout.train` or `rollout.test` of RL2's settings.
        """
        status = type(sample.status)
        if sample.status == status.DONE:
            return
        self.gate.open()  # RL2 calls this only while its servers generate
        # only the number, because RL2 writes samples as JSON
        number = sample.sample.setdefault("gem", next(self.numbers))
        if number not in self._running:
            task = self.config.task_of(sample.sample, number)
            self._running[number] = asyncio.ensure_future(
                self.episode(task, config, tokenizer, router_url)
            )
        playing, sample.status = self._running[number], status.RUNNING
        paused = asyncio.ensure_future(self.gate.closed())
        try:
            await asyncio.wait({playing, paused}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            playing.cancel()
            raise
        finally:
            paused.cancel()
        if playing.done():
            self._running.pop(number, None)  # `rest` may have removed it
            self._store(sample, number, playing.result(), tokenizer)
        sample.status = status.DONE if playing.done() else status.ABORTED

    async def episode(self, task: Task, config: Any, tokenizer: Any, router_url: str) -> Episode:
        """Play the episode of a task."""
        turn_end = self.prepare(tokenizer).turn_end
        params: Any = OmegaConf.to_container(config.sampling_params)
        arguments = (_ask(router_url), params, lambda: self.updates, turn_end)
        if config.get("partial_rollout", False):
            policy: EnginePolicy = PausablePolicy(self.gate, *arguments)
        else:
            policy = EnginePolicy(*arguments)
        return await play(self, task, policy, params, self.training)

    def forget(self) -> None:
        """Record and remove the finished episodes."""
        self._finished = {True: [], False: []}
        self.ledger.disown()
        self.record(self.ledger.drop())

    def close(self) -> None:
        self.ledger.disown()
        super().close()

    async def rest(self) -> None:
        """Cancel running episodes, before RL2's event loop ends; record those that have ended."""
        ended = [playing for playing in self._running.values() if playing.done()]
        for playing in self._running.values():
            playing.cancel()
        if self._running:
            await asyncio.wait(self._running.values())
        self._running.clear()
        self.record(playing.result() for playing in ended if not playing.exception())
        await super().rest()

    def _store(self, sample: Any, number: int, episode: Episode, tokenizer: Any) -> None:
        """Write an episode to RL2's sample.

        Its metric `rewards` is the whole return; RL2's own sums only the last turn of sequences.
        """
        if self.training:
            self.ledger.add(number, episode)
            self.ledger.own(number, sample)
        sample.state_dicts, sample.turn = to_batch(episode, self.end_id), len(episode.turns)
        last_ids = sample.state_dicts[-1]["states"]
        sample.state_text = tokenizer.decode(last_ids, skip_special_tokens=False)
        for name, values in generation_metrics(episode).items():
            sample.metrics[name].extend(values)
        sample.metrics["turns"].append(len(episode.turns))
        # RL2 needs a number for failed episodes, too
        sample.metrics["rewards"].append(episode.total_reward or 0.0)


def announced_as_worker(request: Callable[..., Any]) -> Callable[..., Any]:
    """Return RL2's `sync_request` that registers servers with newer routers.

    Routers from 0.2.2 on respond to RL2's `add_worker` with 404 and expect `workers` instead.
    """

    def sync_request(url: str, endpoint: str, *args: Any, **kwargs: Any) -> Any:
        name, separator, worker = endpoint.partition("?url=")
        if name != "add_worker" or not separator:
            return request(url, endpoint, *args, **kwargs)
        response = request(url, "workers", json={"url": worker})
        _wait_for_worker(request, url, worker)
        return response

    return sync_request


def _wait_for_worker(
    request: Callable[..., Any], url: str, worker: str, seconds: float = 120.0
) -> None:
    """Wait until the router reports the server as healthy; earlier requests would fail."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        workers = request(url, "workers", "GET").get("workers", [])
        if any(w.get("url") == worker and w.get("is_healthy") for w in workers):
            return
        time.sleep(0.2)
    raise EngineError(
        f"the router at {url} did not accept the server {worker} within {seconds:.0f} s"
    )


def _ask(router_url: str) -> Ask:
    """Return RL2's request to the router at `router_url`."""
    communication = import_module("RL2.utils.communication")

    async def ask(ids: list[int], params: dict[str, Any]) -> Any:
        request = {"input_ids": ids, "sampling_params": params, "return_logprob": True}
        return await communication.async_request(router_url, "generate", json=request)

    return ask


if __name__ == "__main__":
    main(MainBranchTrainer)
