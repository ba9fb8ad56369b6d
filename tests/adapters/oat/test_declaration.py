"""Declaration of the oat adapter: it matches the installed version and its methods."""

from __future__ import annotations

import inspect
from importlib.metadata import version

from oat.algorithms.ppo_multiturn import PPOMultiTurnActor, PPOMultiTurnLearner
from oat.learners.base import LearnerBase

from gem_core.adapter_kit.declaration import probe
from gem_oat import ADAPTER


def test_declaration_matches_the_installed_version() -> None:
    status = probe(ADAPTER)
    assert status.installed == version("oat-llm")
    assert status.supported
    assert status.python_fits
    assert [m for m in status.missing if not m.startswith("platform ")] == []


def test_overridden_methods_exist_with_the_same_parameters() -> None:
    assert PPOMultiTurnActor.__abstractmethods__ == {"collect_experience"}
    for method, parameters in (
        (PPOMultiTurnLearner.process_feedback_data, "self data_list"),
        (LearnerBase.prepare_data, "self strategy tokenizer"),
        (LearnerBase.evaluate, "self dataloader steps"),
        (LearnerBase.eval_and_log, "self train_info eval save"),
    ):
        assert list(inspect.signature(method).parameters) == parameters.split()


def test_workarounds_are_still_needed() -> None:
    """If an assertion fails, oat has fixed the problem: remove the adapter's workaround."""
    source = inspect.getsource(PPOMultiTurnLearner)
    # oat reads the critic's value at the first token
    assert ")[0, 0]" in source and ")[:, 0]" in source
    # oat drops transitions at random if there are more than a batch
    assert "np.random.choice" in source
    # with reinforce_update, this is 0 / 0
    assert 'infos["kl_sample_train_v1"] = kl_v1_sum / act_num_token' in source
