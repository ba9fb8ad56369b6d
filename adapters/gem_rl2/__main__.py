"""Main: runs RL2's own command on a gem environment.

    torchrun --nproc_per_node=8 -m gem_rl2 +gem.env_id=game:GuessTheNumber-v0-easy +gem.gamma=0.9 \\
        actor.model_name=... actor.max_length_per_device=8192 train_data.prompts_per_rollout=64 ...

`+gem.X=Y` sets the field X of `GemConfig`. All other arguments are RL2's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import RL2.trainer.ppo as rl2_ppo
from omegaconf import OmegaConf, open_dict

from gem_core.adapter_kit.patching import patched
from gem_rl2.config import GemConfig, settings_folder
from gem_rl2.trainer import GemPPOTrainer

__all__ = ["config_of", "main"]


def config_of(settings: Any) -> GemConfig:
    """Read the `GemConfig` from the section `gem` of RL2's settings, and remove the section."""
    fields: Any = OmegaConf.to_container(settings.gem, resolve=True) if "gem" in settings else {}
    config = GemConfig.from_dict(fields, where="the command line, in +gem.X=Y,")
    with open_dict(settings):
        settings.pop("gem")
    return config


def main(trainer: Callable[[Any, GemConfig], Any] = GemPPOTrainer) -> None:
    """Run RL2's `main` with gem's trainer."""
    if not {"--config-path", "-cp"} & set(sys.argv):
        # by default hydra looks beside the started program, which is not RL2's here
        sys.argv[1:1] = ["--config-path", str(settings_folder())]
    with patched(rl2_ppo, "PPOTrainer", lambda settings: trainer(settings, config_of(settings))):
        rl2_ppo.main()


if __name__ == "__main__":
    main()
