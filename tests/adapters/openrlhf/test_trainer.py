"""gem's advantages in OpenRLHF's batch, and the check that the batch is what was played."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator
from thinking_template import SHORTENING
from worlds import ECHO, MOODY

from gem_core.errors import BatchMismatchError, ConfigError, EnvError
from gem_core.training.advantage import advantages
from gem_core.training.metrics_file import read_metrics
from gem_core.types import Message, StopReason
from gem_openrlhf import GemConfig
from gem_openrlhf.actors import GemCriticActor, class_of
from gem_openrlhf.convert import all_sequences
from gem_openrlhf.samples import GemSamplesGenerator
from gem_openrlhf.trainer import (
    GemExperienceMaker,
    GemPPOTrainer,
    GemTraining,
    check_batch,
    optimizer_steps,
    put_advantages,
)

Play = Callable[..., list[dict[str, Any]]]


def batch(responses: list[dict[str, Any]]) -> Any:
    """Return one padded batch, as OpenRLHF concatenates samples."""
    generator = SamplesGenerator.__new__(SamplesGenerator)
    return Experience.concat_experiences(
        [generator._process_response_into_experience(r, max_len=512) for r in responses], 0
    )


@pytest.mark.parametrize("estimator", ["rebn", "reinforce", "reinforce++", "grpo", "rloo"])
def test_every_token_gets_the_advantage_of_its_turn(play: Play, estimator: str) -> None:
    responses = play(
        GemConfig(ECHO, max_turn_tokens=6, advantage=estimator, gamma=0.9),
        seeds=[0, 1, 2],
        samples=2,
    )
    episodes = [response["label"].episode for response in responses]
    first, second = batch(responses[:4]), batch(responses[4:])
    metrics = put_advantages([first, second])
    per_turn = advantages(episodes, estimator, gamma=0.9)
    sizes = [abs(number) for numbers in per_turn for number in numbers]
    assert metrics.means()["advantage_abs"] == pytest.approx(sum(sizes) / len(sizes))
    assert metrics.tokens == first.action_mask.sum() + second.action_mask.sum()
    for response, tokens, numbers in zip(
        responses, [*first.advantages, *second.advantages], per_turn
    ):
        for (start, end), number in zip(response["action_ranges"], numbers):
            assert tokens[start - 1 : end - 1].tolist() == pytest.approx(
                [number] * (end - start), abs=1e-6
            )
    for experience in (first, second):
        assert float((experience.advantages * (1 - experience.action_mask)).abs().sum()) == 0.0
        assert all(isinstance(label, str) for label in experience.labels), "labels are restored"
        assert experience.kl is None


@pytest.mark.setting("`batch_end`", "works")
def test_plugins_get_the_whole_batch_once(play: Play, batch_ends: list[Any]) -> None:
    responses = play(GemConfig(ECHO, max_turn_tokens=6), seeds=[0, 1, 2])
    put_advantages([batch(responses[:2]), batch(responses[2:])])
    assert [[e.seed for e in episodes] for episodes in batch_ends] == [[0, 1, 2]]


def test_metrics_exclude_failed_episodes(play: Play) -> None:
    responses = play(GemConfig(MOODY, max_turn_tokens=6), seeds=[0, 1, 2, 3])
    experience = batch(responses)
    metrics = put_advantages([experience])
    assert metrics.means()["failed"] == 0.5
    finished = [
        response["reward"] for response in responses if not response["label"].episode.failed
    ]
    assert metrics.means()["return"] == pytest.approx(sum(finished) / 2)
    assert torch.isfinite(experience.advantages).all()
    assert [bool(mask.any()) for mask in experience.action_mask] == [True, False, True, False]


def test_samples_of_another_agent_are_rejected(play: Play) -> None:
    experience = batch(play(GemConfig(ECHO, max_turn_tokens=6), seeds=[0]))
    experience.labels = ["42"]
    with pytest.raises(ConfigError, match="agent_func_path"):
        put_advantages([experience])


def test_datasets_with_different_estimators_are_rejected(play: Play) -> None:
    config = GemConfig(ECHO, max_turn_tokens=6)
    for change in ({"gamma": 0.5}, {"metrics": "other.jsonl"}):
        responses = play(config, seeds=[0]) + play(replace(config, **change), seeds=[1])
        with pytest.raises(ConfigError, match="must have the same advantage estimator"):
            put_advantages([batch(responses)])


@pytest.mark.parametrize("change", ["ids", "mask", "cut"])
def test_check_batch_rejects_changed_ids_or_mask(play: Play, change: str) -> None:
    experience = batch(play(GemConfig(ECHO, max_turn_tokens=6), seeds=[2, 5]))
    check_batch([experience])
    if change == "ids":
        experience.sequences = experience.sequences.roll(1, dims=1)
    elif change == "mask":
        experience.action_mask = experience.action_mask.roll(1, dims=1)
    else:
        experience = replace(
            experience,
            sequences=experience.sequences[:, :20],
            action_mask=experience.action_mask[:, :19],
        )
    with pytest.raises(BatchMismatchError, match="in OpenRLHF's batch"):
        check_batch([experience])
    with pytest.raises(BatchMismatchError, match="in OpenRLHF's batch"):
        put_advantages([experience])


def trainer_of(folder: Path) -> Any:
    """Return a trainer without models, after OpenRLHF has read its checkpoint."""
    trainer: Any = GemTraining.__new__(GemTraining)
    trainer.args = SimpleNamespace(
        # the trainer does not read the dataset, which may be on the hub
        data=SimpleNamespace(prompt_dataset="someone/data", label_key="label"),
        ckpt=SimpleNamespace(load_enable=False, path=str(folder), save_steps=10),
        logger=SimpleNamespace(logging_steps=10),
    )
    trainer.init_checkpoint_states()
    trainer.experience_maker = GemExperienceMaker.__new__(GemExperienceMaker)
    trainer.experience_maker.critic_model_group = None
    return trainer


def make_experience(trainer: Any, responses: list[dict[str, Any]]) -> None:
    """Let the experience maker compute the advantages of a batch."""
    experience = batch(responses)
    experience.action_log_probs = experience.rollout_log_probs.clone()
    trainer.experience_maker.compute_advantages_and_returns([experience])


def test_metrics_file_has_one_line_per_update(play: Play, tmp_path: Path) -> None:
    """The path of the file and other settings travel in the labels of a batch."""
    config = GemConfig(
        ECHO, seeds=2, max_turn_tokens=6, metrics=str(tmp_path / "metrics.jsonl"), horizon="1,3@1"
    )
    trainer = trainer_of(tmp_path)
    make_experience(trainer, play(config, seeds=[0, 1]))
    episodes = trainer.experience_maker.last_batch
    trainer.save_logs_and_checkpoints(
        1, {"policy_loss": 0.5, "actor_grad_norm": 2.0, "generated_samples": ["text", 0.0]}
    )
    (line,) = read_metrics(config.metrics or "")
    assert (line["step"], line["loss"], line["grad_norm"], line["episodes"]) == (0, 0.5, 2.0, 2)
    assert (line["tokens"], line["horizon"]) == (episodes.tokens, 1)
    for name in ("advantage_abs", "return", "turn/0/advantage_abs", "turn/0/return"):
        assert line[name] == pytest.approx(episodes.means()[name])
    assert line["seconds"] > 0


class TestFailures:
    @pytest.fixture
    def config(self) -> GemConfig:
        return GemConfig(MOODY, seeds=[1, 3], max_turn_tokens=6)

    @pytest.mark.setting("Failing runs", "works")
    def test_run_stops_after_three_updates_of_failed_episodes(
        self, play: Play, config: GemConfig, tmp_path: Path
    ) -> None:
        trainer = trainer_of(tmp_path)
        make_experience(trainer, play(config, seeds=[1, 3]))
        trainer.save_logs_and_checkpoints(1)
        trainer.save_logs_and_checkpoints(2)
        with pytest.raises(EnvError, match="last 3 updates failed") as raised:
            trainer.save_logs_and_checkpoints(3)
        assert "in a bad mood" in str(raised.value) and "worlds.py" in str(raised.value)

    @pytest.mark.usefixtures("ray_here")
    def test_failed_batch_makes_no_optimizer_step(
        self, play: Play, config: GemConfig, tmp_path: Path
    ) -> None:
        """A gradient of 0 would still move the weights by the optimizer's momentum."""
        trainer, calls = trainer_of(tmp_path), []
        trainer.actor_model_group = trainer.critic_model_group = SimpleNamespace(
            async_run_method=lambda method_name: calls.append(method_name) or []
        )
        trainer.experience_maker.last_batch = put_advantages([batch(play(config, seeds=[1, 3]))])
        assert trainer.ppo_train(0) == {}
        assert calls == ["skip_update"] * 2


class Rank:
    """A group of one rank that stores batches as OpenRLHF's models do; `fit` returns them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.buffer: list[int] = []
        self.trained: list[list[int]] = []

    def async_run_method(self, method_name: str, **_: Any) -> list[Any]:
        if method_name == "fit":
            self.trained.append(list(self.buffer))
        assert method_name in ("fit", "skip_update")
        self.buffer.clear()
        return [ray.put({f"{self.name}_loss": 1.0})]


@pytest.mark.usefixtures("ray_here")
def test_frozen_actor_forgets_the_batches_of_its_critic(play: Play, tmp_path: Path) -> None:
    """With `--critic.freezing_steps 1`, the critic trains alone in the first two updates."""
    trainer, actor, critic = trainer_of(tmp_path), Rank("policy"), Rank("critic")
    trainer.args.critic = SimpleNamespace(freezing_steps=1)
    trainer.args.ds = SimpleNamespace(enable_sleep=False)
    trainer.kl_ctl = SimpleNamespace(value=0.0)
    trainer.actor_model_group, trainer.critic_model_group = actor, critic
    responses = play(GemConfig(ECHO, max_turn_tokens=6), seeds=[0])
    trainer.experience_maker.last_batch = put_advantages([batch(responses)])
    statuses = []
    for update in range(4):
        actor.buffer.append(update)  # OpenRLHF sends every batch to both
        critic.buffer.append(update)
        statuses.append(trainer.ppo_train(update))
    assert critic.trained == [[0], [1], [2], [3]] and actor.trained == [[2], [3]]
    assert ["policy_loss" in status for status in statuses] == [False, False, True, True]


class TestCritic:
    @pytest.fixture
    def config(self) -> GemConfig:
        return GemConfig(
            ECHO,
            max_turn_tokens=6,
            advantage="gae",
            gamma=0.9,
            estimator_kwargs={"lam": 0.5},
            horizon=2,
        )

    @pytest.mark.setting("Critic", "works")
    def test_values_are_read_and_trained_where_turns_begin(
        self, play: Play, config: GemConfig
    ) -> None:
        # seed 1 terminates after two turns; seed 2 needs a third, so the horizon cuts it
        responses = play(config, seeds=[1, 2])
        first, second = (response["label"] for response in responses)
        assert (first.cut_state, second.episode.stop) == ((), StopReason.TURN_LIMIT)
        played = list(second.sequence.ids)
        assert list(second.cut_state[: len(played)]) == played
        assert len(second.cut_state) > len(played), "the last observation follows"
        experience = batch(responses)
        experience.values = torch.full(experience.action_mask.shape, 99.0)
        values = [[0.4, 0.2], [0.1, 0.3, 0.8]]
        for i, (response, numbers) in enumerate(zip(responses, values)):
            for (start, _), number in zip(response["action_ranges"], numbers):
                experience.values[i, start - 1] = number
        put_advantages([experience], last_values={second.key: 0.8})
        for i, (response, v) in enumerate(zip(responses, values)):
            r = response["label"].episode.rewards
            bootstrap = 0.9 * v[2] if i else 0.0
            last = r[1] + bootstrap - v[1]
            by_hand = [r[0] + 0.9 * v[1] - v[0] + 0.45 * last, last]
            targets = {}
            for (start, end), a, value in zip(response["action_ranges"], by_hand, v):
                assert experience.advantages[i, start - 1 : end - 1].tolist() == pytest.approx(
                    [a] * (end - start), abs=1e-6
                )
                targets[start - 1] = value + a
            trained = (~experience.returns[i].isnan() & experience.action_mask[i].bool()).nonzero()
            assert trained.flatten().tolist() == list(targets)
            assert experience.returns[i, trained.flatten()].tolist() == pytest.approx(
                list(targets.values()), abs=1e-6
            )

    def test_critic_learns_only_the_positions_with_a_target(
        self, play: Play, config: GemConfig
    ) -> None:
        experience = batch(play(config, seeds=[1, 4]))
        experience.values = torch.zeros(experience.action_mask.shape)
        put_advantages([experience], last_values={})
        stored: list[Any] = []
        critic = class_of(GemCriticActor).__new__(class_of(GemCriticActor))
        critic.trainer = SimpleNamespace(replay_buffer=stored)
        critic.append(experience)
        assert int(stored[0].action_mask.sum()) == 4, "two turns each"
        assert int(experience.action_mask.sum()) > 4, "the policy trains all tokens"
        assert bool(stored[0].returns.isfinite().all())


class TestSeveralSequences:
    @pytest.mark.setting("Rewritten history", "works")
    def test_all_sequences_are_trained_with_their_turns(self, play: Play) -> None:
        config = GemConfig(ECHO, wrappers=["concat"], max_turn_tokens=6, gamma=0.9)
        responses = play(config, seeds=[2, 0])
        generator = SamplesGenerator.__new__(SamplesGenerator)
        samples = [generator._process_response_into_experience(r, max_len=512) for r in responses]
        complete = all_sequences(samples, multiple=8, max_len=512)
        assert [s.labels[0].number for s in complete] == [0, 1, 2, 0, -1, -1, -1, -1]
        experience = Experience.concat_experiences(complete, 0)
        metrics = put_advantages([experience])
        assert metrics.episodes == 2
        episodes = [r["label"].episode for r in responses]
        per_turn = [a for numbers in advantages(episodes, "rebn", gamma=0.9) for a in numbers]
        for row, mask, number in zip(experience.advantages, experience.action_mask, per_turn):
            trained = row[mask.bool()].tolist()
            assert trained and trained == pytest.approx([number] * len(trained), abs=1e-6)
        assert int(experience.action_mask[4:].sum()) == 0, "padding trains nothing"

    @pytest.mark.parametrize(
        ("actor", "critic", "samples", "sizes"),
        [
            (1, 0, 12, [8, 4]),
            (2, 0, 32, [8] * 4),
            (2, 0, 24, [4] * 6),
            (4, 0, 24, [2] * 12),
            (1, 2, 12, [2] * 6),
            (2, 4, 24, [2] * 12),
        ],
    )
    def test_ranks_get_equal_parts(
        self, monkeypatch: Any, actor: int, critic: int, samples: int, sizes: list[int]
    ) -> None:
        args = SimpleNamespace(
            rollout=SimpleNamespace(micro_batch_size=8),
            train=SimpleNamespace(dynamic_batch_enable=False),
        )
        maker = GemExperienceMaker.__new__(GemExperienceMaker)
        maker.args, maker.initial_model_group = args, None
        maker.actor_model_group, maker.critic_model_group = (
            SimpleNamespace(_actor_handlers=[None] * ranks, duplicate_actors=1) if ranks else None
            for ranks in (actor, critic)
        )
        maker.tokenizer = SimpleNamespace(pad_token_id=0)
        monkeypatch.setattr(Experience, "concat_experiences", lambda own, _: own)
        parts = maker.split_rollout_samples([SimpleNamespace() for _ in range(samples)])
        assert [len(part) for part in parts] == sizes and args.rollout.micro_batch_size == 8

    @pytest.mark.parametrize(("prompts", "steps"), [(128, 4), (100, 4), (65, 4), (64, 2), (20, 2)])
    def test_schedule_counts_incomplete_batches(self, prompts: int, steps: int) -> None:
        args = SimpleNamespace(
            rollout=SimpleNamespace(batch_size=64, n_samples_per_prompt=2),
            train=SimpleNamespace(batch_size=128, num_episodes=2, max_epochs=1),
        )
        assert optimizer_steps(prompts, args) == steps

    def test_padding_completes_a_batch(self, play: Play) -> None:
        responses = play(GemConfig(ECHO, max_turn_tokens=6), seeds=[2, 0])
        generator = SamplesGenerator.__new__(SamplesGenerator)
        samples = [generator._process_response_into_experience(r, max_len=512) for r in responses]
        complete = all_sequences(samples, multiple=4, max_len=512)
        assert [s.labels[0].number for s in complete] == [0, 0, -1, -1]
        assert all_sequences(complete[:2], multiple=2, max_len=512) == complete[:2]

    @pytest.mark.setting("Template mode", "works")
    def test_history_as_the_template_writes_it(self, play: Play, engine: Any) -> None:
        engine.tokenizer.chat_template = SHORTENING
        config = GemConfig(ECHO, history="template", max_turn_tokens=6)
        (response,) = play(config, seeds=[2])
        label = response["label"]
        assert len(label.sequences) > 1
        assert sorted(t for s in label.sequences for t in s.trained) == [0, 1, 2]

    def test_critic_sees_the_history_as_the_template_writes_it(
        self, play: Play, engine: Any
    ) -> None:
        engine.tokenizer.chat_template = SHORTENING
        config = GemConfig(
            ECHO, history="template", max_turn_tokens=6, advantage="gae", gamma=0.9, horizon=2,
            estimator_kwargs={"lam": 0.5},
        )  # fmt: skip
        (response,) = play(config, seeds=[2])
        label = response["label"]
        final = label.episode.turns[-1]
        said = [*final.messages, Message("assistant", final.action)]
        observation = Message("user", label.episode.final_observation)
        next_prompt = config.renderer(engine.tokenizer).start([*said, observation])
        assert label.cut_state == next_prompt
        assert next_prompt[: len(label.sequences[1].ids)] != label.sequences[1].ids
        generator = SamplesGenerator.__new__(SamplesGenerator)
        sample = generator._process_response_into_experience(response, max_len=512)
        experience = Experience.concat_experiences(all_sequences([sample], 2, 512), 0)
        experience.values = torch.full(experience.action_mask.shape, 99.0)
        v, r = [0.1, 0.3], label.episode.rewards
        starts = [sequence.spans[0][1] - 1 for sequence in label.sequences]
        for row, (start, value) in enumerate(zip(starts, v)):
            experience.values[row, start] = value
        put_advantages([experience], last_values={label.key: 0.8})
        last = r[1] + 0.9 * 0.8 - v[1]
        by_hand = [r[0] + 0.9 * v[1] - v[0] + 0.45 * last, last]
        for row, (start, value, advantage) in enumerate(zip(starts, v, by_hand)):
            assert float(experience.advantages[row, start]) == pytest.approx(advantage, abs=1e-6)
            assert float(experience.returns[row, start]) == pytest.approx(
                value + advantage, abs=1e-6
            )

    def test_openrlhf_s_own_trainer_is_told(self, play: Play, engine: Any) -> None:
        del engine.gem_step
        with pytest.raises(ConfigError, match="OpenRLHF's own trainer takes one per episode"):
            play(GemConfig(ECHO, wrappers=["concat"], max_turn_tokens=6), seeds=[2])


@pytest.mark.setting("Evaluation", "works")
def test_evaluation_is_logged_per_environment(play: Play) -> None:
    mixture = f"1*{ECHO} + 1*{MOODY}"
    config = GemConfig(mixture, max_turn_tokens=6, eval_seeds=6)
    samples = [batch([r]) for r in play(config, seeds=config.held_out_seeds)]
    generator: Any = GemSamplesGenerator.__new__(GemSamplesGenerator)
    generator.args = SimpleNamespace(
        vllm=SimpleNamespace(enable_sleep=False), rollout=SimpleNamespace(batch_size=8)
    )
    generator.eval_dataloader = []
    generator._generate_vllm = lambda **kwargs: (samples, 6, True)
    generator.generate_eval_samples()
    logged: dict[str, float] = {}
    trainer = class_of(GemPPOTrainer).__new__(class_of(GemPPOTrainer))
    trainer.samples_generator, trainer.eval_dataloader = generator, []
    trainer.wandb_logger = None
    trainer.tensorboard_logger = SimpleNamespace(log_eval=lambda step, logs: logged.update(logs))
    assert trainer.evaluate(3, n_samples_per_prompt=1).items() >= logged.items()
    for env in (ECHO, MOODY):
        assert f"gem/env/{env}/success" in logged
    assert {"gem/return", "gem/success", "gem/failed", "gem/turn/0/return"} <= logged.keys()
