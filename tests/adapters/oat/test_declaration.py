"""What `gem-rl adapters` says where oat is really installed, and whether the ways in it names are still there."""

from __future__ import annotations

import inspect
from importlib.metadata import version

from oat.algorithms.ppo_multiturn import PPOMultiTurnActor, PPOMultiTurnLearner
from oat.learners.base import LearnerBase

from gem_core.adapter_kit.declaration import probe
from gem_oat import ADAPTER


def test_the_installed_oat_is_one_the_adapter_fits() -> None:
    status = probe(ADAPTER)
    assert status.installed == version("oat-llm")
    assert status.supported
    assert status.python_fits
    assert [m for m in status.missing if not m.startswith("a machine of")] == []


def test_the_ways_in_are_there() -> None:
    assert PPOMultiTurnActor.__abstractmethods__ == {"collect_experience"}
    assert list(inspect.signature(PPOMultiTurnLearner.process_feedback_data).parameters) == [
        "self",
        "data_list",
    ]
    assert list(inspect.signature(LearnerBase.prepare_data).parameters) == [
        "self",
        "strategy",
        "tokenizer",
    ]
    assert list(inspect.signature(LearnerBase.evaluate).parameters) == [
        "self",
        "dataloader",
        "steps",
    ]
    assert list(inspect.signature(LearnerBase.eval_and_log).parameters) == [
        "self",
        "train_info",
        "eval",
        "save",
    ]


def test_what_is_worked_around_is_still_so() -> None:
    """Where one of these fails, oat has been mended: the adapter's part of it can go."""
    source = inspect.getsource(PPOMultiTurnLearner)
    assert ")[0, 0]" in source and ")[:, 0]" in source  # the critic is read at the first token
    assert "np.random.choice" in source  # what is more than a batch is left out at random
    assert (
        'infos["kl_sample_train_v1"] = kl_v1_sum / act_num_token' in source
    )  # 0 / 0 with reinforce_update
