"""Conformance: golden episodes through the real learner: oat's collector, critic, buffer, data set and loss."""

from __future__ import annotations

import multiprocessing
import pickle
import socket
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

from deepspeed.utils import safe_get_full_grad
from oat.algorithms.ppo import PPOArgs
from oat.args import default_args_validation

from gem_core.adapter_kit.conformance.golden import Case
from gem_core.adapter_kit.conformance.harness import TrainedSequence
from gem_core.errors import GemError
from gem_core.policies.tiny import tiny_model_path
from gem_core.rollout.renderer import Renderer
from gem_core.types import Episode
from gem_oat import ADAPTER
from gem_oat.advantage import GemLearner
from gem_oat.config import GemConfig, check_args
from gem_oat.rollout import collect, count_up

__all__ = ["OatHarness", "harness"]

_BATCH = 16
"""Transitions of a batch, fillers included: room for the largest golden case."""
_TOKENS = 8
"""oat's `generate_max_length`, by which its loss divides the sum over the tokens of a turn."""


class OatHarness:
    """A real learner without actors on the tiny model, in float32; one more, with a critic, where a case asks for values."""

    adapter = ADAPTER
    carries = frozenset({"logprobs", "total"})
    sequence_per_turn = True
    padding_has_logprobs = True  # by `settle_fillers`

    def __init__(self, **settings: Any) -> None:
        self.version = version("oat-llm")
        self.settings = settings
        self._learners: dict[bool, Any] = {}
        self._ranks: list[_Rank] = []

    def train(self, case: Case) -> list[TrainedSequence]:
        return self._rows(self._update(case, case.episodes))

    def gradient(self, case: Case) -> Mapping[str, Any]:
        learner = self._learner(case)
        found: dict[str, Any] = {}
        inner = learner.strategy.get_gradient_norm

        def norm(model: Any, **kwargs: Any) -> Any:  # oat asks for it when the gradient is whole and no step was made yet
            found.update({n: safe_get_full_grad(p).detach().clone() for n, p in model.model.module.named_parameters()})
            return inner(model, **kwargs)

        learner.strategy.get_gradient_norm = norm
        try:
            self._update(case, case.episodes)
        finally:
            learner.strategy.get_gradient_norm = inner
        return found

    def gradient_factor(self, case: Case) -> float:
        """oat divides by the transitions of a batch and a constant, not by the trained tokens: a known scale."""
        trained = sum(len(turn.action_ids) for e in case.episodes for t, turn in enumerate(e.turns) if e.trained(t))
        return trained / (_BATCH * _TOKENS)

    def ranks(self, case: Case, parts: Sequence[Sequence[Episode]]) -> list[list[TrainedSequence]]:
        """Processes, each with a learner of its own and its part of the batch; they are kept for the next case."""
        if not self._ranks:
            port = _free_port()
            self._ranks = [_Rank(number, len(parts), port) for number in range(len(parts))]
        try:
            for rank, part in zip(self._ranks, parts):
                rank.connection.send((case, list(part)))
            return [rank.answer() for rank in self._ranks]
        except BaseException:
            for rank in self._ranks:
                rank.process.terminate()
            self._ranks = []
            raise

    def _update(self, case: Case, episodes: Sequence[Episode]) -> dict[str, Any]:
        """One batch through oat's own code, from its collector to its optimizer; returns what its loss was given."""
        learner = self._learner(case)
        learner.args.gem = self._spec(case)
        learner.args.gamma = case.gamma
        batch = collect(episodes, _BATCH, Renderer(learner.tokenizer), with_critic=learner.critic is not None)
        info = count_up(episodes, batch, 0)
        for transition in (t for transitions in batch for t in transitions):
            transition.info.update(info)  # as PPOMultiTurnActor.step does
        batch = pickle.loads(pickle.dumps(batch))  # as plasma carries it
        learner.actor_info = learner.collector.get_metrics(0.0, batch)
        with _given_values(learner, case, episodes):
            learner.process_feedback_data(batch)
        dataset = learner.dataset_builder(learner.pi_buffer, learner.tokenizer, learner.strategy)
        data = self._loaded(dataset.collate_fn([dataset[i] for i in range(len(dataset))]))
        learner.pi_buffer.clear()
        learner.model.train()
        learner.learning_step(data)
        return data

    def _loaded(self, data: dict[str, Any]) -> dict[str, Any]:
        """What goes into the loss."""
        return data

    def _rows(self, data: Mapping[str, Any]) -> list[TrainedSequence]:
        """oat's tensors, padding taken off."""
        found = []
        for i, prompt in enumerate(data["prompt_ids_lens"]):
            ids = data["input_ids"][i][data["attention_mask"][i].bool()].tolist()
            behind, trained = len(ids) - prompt, bool(data["loss_masks"][i])
            found.append(
                TrainedSequence(
                    ids=ids,
                    mask=[0] * prompt + [int(trained)] * behind,
                    advantages=[0.0] * prompt + [float(data["advantages"][i])] * behind,
                    logprobs=[0.0] * prompt + list(data["action_logprobs"][i]),
                    total=float(data["rewards"][i]),
                )
            )
        return found

    def _spec(self, case: Case) -> GemConfig:
        needed = {k: v for k, v in case.arguments.items() if k != "values"}
        return GemConfig(
            "game:GuessTheNumber-v0-easy",
            seeds=64,
            samples=2,
            advantage=case.estimator,
            gamma=case.gamma,
            estimator_kwargs=needed,
            max_turn_tokens=_TOKENS,
        )

    def _learner(self, case: Case) -> Any:
        spec = self._spec(case)
        if spec.with_critic not in self._learners:
            self._learners[spec.with_critic] = make_learner(spec, **self.settings)
        return self._learners[spec.with_critic]


class _Rank:
    """A process that trains its part of each case it is sent."""

    def __init__(self, rank: int, ranks: int, port: int) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.connection, theirs = spawn.Pipe()
        self.process = spawn.Process(target=_serve_rank, args=(theirs, rank, ranks, port), daemon=True)
        self.process.start()
        theirs.close()

    def answer(self) -> list[TrainedSequence]:
        """Its rows; what it raised is raised here."""
        if not self.connection.poll(300):
            raise RuntimeError("a rank did not answer within 300 s")
        found = self.connection.recv()
        if isinstance(found, Exception):
            raise found
        return found  # type: ignore[no-any-return]


def _serve_rank(connection: Any, rank: int, ranks: int, port: int) -> None:
    own = OatHarness(rank=rank, ranks=ranks, port=port)
    while True:
        try:
            case, part = connection.recv()
        except EOFError:  # nobody asks any more
            return
        try:
            connection.send(own._rows(own._update(case, part)))
        except Exception as error:  # noqa: BLE001 - raised again where the rank is asked
            connection.send(error if isinstance(error, GemError) else RuntimeError(f"{type(error).__name__}: {error}"))


@contextmanager
def _given_values(learner: Any, case: Case, episodes: Sequence[Episode]) -> Iterator[None]:
    """The critic's answers, replaced by the values the case holds; oat asks for them turn by turn."""
    if learner.critic is None:
        yield
        return
    known = dict(zip(map(id, case.episodes), case.arguments["values"]))
    left = iter([value for episode in episodes for value in known[id(episode)]])
    hook = learner.critic.register_forward_hook(lambda module, inputs, values: values * 0 + next(left, 0.0))
    try:
        yield
    finally:
        hook.remove()


def make_learner(spec: GemConfig, *, rank: int = 0, ranks: int = 1, port: int | None = None, **settings: Any) -> GemLearner:
    """A learner that is asked for its updates one by one: oat's own, in this process, and without actors."""
    args = PPOArgs(
        pretrain=str(tiny_model_path()),
        gpus=ranks,
        collocate=True,
        bf16=False,
        flash_attn=False,
        beta=0.0,
        tis_c=None,  # the reference has no importance correction
        learning_rate=0.0,  # every case is held against the same weights
        critic_learning_rate=0.0,
        lr_scheduler="constant",
        rollout_batch_size=_BATCH * ranks,
        rollout_batch_size_per_device=_BATCH,
        train_batch_size=_BATCH * ranks,
        max_train=_BATCH * ranks,
        save_path=tempfile.mkdtemp(),
        **{**spec.arguments(), **settings},
    )
    check_args(args, spec)
    args.gem = spec
    args.learner_gpus_per_group = ranks
    args.local_rank = 0
    learner = GemLearner(ranks, rank, 0, "127.0.0.1", port or _free_port(), False, default_args_validation(args), [], None)
    learner._init(learner.args, [])
    learner.steps = 1
    return learner


def harness() -> OatHarness:
    """What `gem-rl conformance oat` runs."""
    return OatHarness()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
