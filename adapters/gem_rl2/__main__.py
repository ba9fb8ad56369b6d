"""PPO: RL2's own command, with a gem environment named on its command line.

    torchrun --nproc_per_node=8 -m gem_rl2.ppo +gem.env_id=game:GuessTheNumber-v0-easy +gem.gamma=0.9 \\
        actor.model_name=... actor.max_length_per_device=8192 train_data.prompts_per_rollout=64 ...

`+gem.X=Y` is the field X of `GemConfig`; everything else is RL2's.
"""

from __future__ import annotations

import sys
from dataclasses import fields
from typing import Any

import RL2.trainer.ppo as rl2_ppo
from omegaconf import OmegaConf, open_dict

from gem_core.errors import ConfigError
from gem_rl2.advantage import GemPPOTrainer
from gem_rl2.config import GemConfig, config_folder
from gem_rl2.interface import replaced

__all__ = ["main", "spec_of", "trainer_for"]


def spec_of(config: Any) -> GemConfig:
    """The spec in a configuration's `gem` section, which is taken out of it: RL2 does not know it."""
    given: Any = OmegaConf.to_container(config.gem, resolve=True) if "gem" in config else {}
    known = [f.name for f in fields(GemConfig)]
    unknown = sorted(set(given) - set(known))
    if unknown or "env_id" not in given:
        raise ConfigError(
            f"+gem.env_id=... names the environment, and +gem.X=... a field of GemConfig; given: {sorted(given)}, of which "
            f"{unknown or 'none'} are unknown. There are: {', '.join(known)}"
        )
    with open_dict(config):
        del config.gem
    return GemConfig(**given)


def trainer_for(config: Any) -> GemPPOTrainer:
    """What RL2's `main` takes for its trainer."""
    return GemPPOTrainer(config, spec_of(config))


def main() -> None:
    """RL2's `main`, with gem's trainer in place of its own."""
    if not {"--config-path", "-cp"} & set(sys.argv):  # RL2's is found beside the program, which is another one here
        sys.argv[1:1] = ["--config-path", str(config_folder())]
    with replaced(rl2_ppo, "PPOTrainer", trainer_for):
        rl2_ppo.main()


if __name__ == "__main__":
    main()
