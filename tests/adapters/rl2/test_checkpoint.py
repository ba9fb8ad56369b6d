"""Checkpoints of RL2: a run resumes only with the settings of the run that saved them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import RL2.trainer.ppo as rl2_ppo
import rl2_on_cpu
import torch
from worlds import ECHO, MOODY

from gem_core.errors import ConfigError
from gem_rl2 import GemConfig
from gem_rl2.checkpoint import patched_checkpoints

Settings = Callable[..., Any]


class Loader:
    """Mock of RL2's loader with 100 batches per epoch."""

    def __len__(self) -> int:
        return 100

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state == {}


@pytest.fixture
def trainer_of(settings_for: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Return `trainer_of(*overrides)`; saving and loading of weights are mocked."""
    if not torch.distributed.is_initialized():
        rl2_on_cpu.start_gloo()
    checkpoint = "RL2.utils.checkpointing"
    monkeypatch.setattr(f"{checkpoint}.get_ckpt", lambda trainer, workers, step: {"step": step})
    monkeypatch.setattr(f"{checkpoint}.dcp", SimpleNamespace(save=save, load=load))

    def make(*overrides: str) -> Any:
        where = (f"trainer.save_dir={tmp_path}", "trainer.save_freq=2")
        settings = settings_for(*where, "trainer.load_ckpt_from=latest", *overrides)
        return SimpleNamespace(config=settings, train_dataloader=Loader())

    return make


def save(state: dict[str, Any], checkpoint_id: str) -> None:
    assert (Path(checkpoint_id) / "gem.json").is_file(), "a complete checkpoint has the file"
    (Path(checkpoint_id) / "step").write_text(str(state["step"]))


def load(state: dict[str, Any], checkpoint_id: str) -> None:
    state.update(step=int((Path(checkpoint_id) / "step").read_text()), dataloader={})


def run(trainer: Any, config: GemConfig, *steps: int) -> int:
    """Load the last checkpoint, save those of these steps, and return the loaded step."""
    with patched_checkpoints(config):
        loaded = rl2_ppo.load_ckpt(trainer, ())
        for step in steps:
            rl2_ppo.save_ckpt(trainer, (), step)
    return int(loaded)


def test_checkpoint_of_the_same_run_is_loaded(trainer_of: Settings, tmp_path: Path) -> None:
    config = GemConfig(ECHO, seeds=16)
    assert run(trainer_of(), config, 1, 2, 3) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["step2"]
    assert run(trainer_of(), config, 4, 10) == 2
    assert run(trainer_of(), config) == 10
    assert run(trainer_of(f"trainer.load_ckpt_from={tmp_path}/step4"), config) == 4
    assert run(trainer_of("trainer.load_ckpt_from=null"), GemConfig(MOODY)) == 0


@pytest.mark.parametrize(
    ("fields", "overrides", "message"),
    [
        ({"env_id": MOODY}, [], f"written with env_id='{ECHO}', but this run has '{MOODY}'"),
        ({"seeds": 32}, [], "written with seeds="),
        ({}, ["train_data.prompts_per_rollout=4"], "written with prompts_per_rollout=8, but this"),
        ({}, ["train_data.responses_per_prompt=2"], "written with responses_per_prompt=1"),
    ],
)
def test_checkpoint_of_another_run_is_rejected(
    trainer_of: Settings, fields: dict[str, Any], overrides: list[str], message: str
) -> None:
    given = {"env_id": ECHO, "seeds": 16}
    run(trainer_of(), GemConfig(**given), 2)
    with pytest.raises(ConfigError, match=message):
        run(trainer_of(*overrides), GemConfig(**{**given, **fields}))


def test_checkpoint_without_the_settings_of_its_run_is_rejected(
    trainer_of: Settings, tmp_path: Path
) -> None:
    (tmp_path / "step7").mkdir()
    with pytest.raises(ConfigError, match=r"step7 has no gem\.json; resume from a checkpoint"):
        run(trainer_of(), GemConfig(ECHO, seeds=16))
