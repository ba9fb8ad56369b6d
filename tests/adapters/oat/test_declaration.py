"""Declaration of the oat adapter: it matches the installed version and its methods."""

from __future__ import annotations

import inspect
import pkgutil
from importlib.metadata import version
from typing import Any

import oat.model
import pytest
from oat.actors.base import ActorBase
from oat.algorithms.ppo_multiturn import PPOMultiTurnActor, PPOMultiTurnLearner
from oat.learners.base import LearnerBase
from oat.utils import distributed

from gem_core.adapter_kit.declaration import probe
from gem_oat import ADAPTER
from gem_oat.worker import WORKER, GemWorker, newer_torch


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
    # torch's version is compared as text
    assert 'str(torch.__version__) >= "2.6"' in inspect.getsource(distributed.init_process_group)
    # the actor gets a process group from vLLM's worker, and passes prompts by a removed argument
    assert "return (\n            self._model_update_group" in inspect.getsource(
        distributed.WorkerWrap.init_process_group
    )
    assert "prompt_token_ids=prompts" in inspect.getsource(ActorBase.generate)
    # transformers 5 sets attributes that it needs in post_init
    assert "post_init" not in inspect.getsource(oat.model.build_critic_cls)


@pytest.mark.parametrize("name", ["pg_options", "backend_options"])
def test_process_groups_get_the_option_of_new_torch_versions(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    received: dict[str, Any] = {}

    def create(*args: Any, **kwargs: Any) -> None:
        received.update(kwargs)

    monkeypatch.setattr(distributed, "_new_process_group_helper", create)
    with newer_torch():
        distributed._new_process_group_helper(1, **{name: "options", "timeout": 5})
    assert received == {"backend_options": "options", "timeout": 5}
    assert distributed._new_process_group_helper is create


def test_worker_extension_is_found_by_its_name() -> None:
    assert pkgutil.resolve_name(WORKER) is GemWorker
