"""`rl2_on_cpu` for RL2's main branch. A checkout of it must be first on the path."""

from __future__ import annotations

import os
import sys

import rl2_on_cpu


def prepare() -> None:
    """Install the mocks."""
    rl2_on_cpu.prepare_process()
    import RL2.trainer.ppo as rl2_ppo
    import RL2.utils.communication as communication
    import RL2.utils.sequences as rl2_sequences
    import RL2.workers.fsdp.actor as rl2_actor
    import RL2.workers.fsdp.critic as rl2_critic
    import RL2.workers.rollout as rl2_rollout
    import torch.distributed as dist

    # gem_rl2.conformance imports these names of the release
    sys.modules["RL2.workers.actor"], rl2_actor.Actor = rl2_actor, rl2_actor.FSDPActor
    sys.modules["RL2.workers.critic"], rl2_critic.Critic = rl2_critic, rl2_critic.FSDPCritic
    rl2_sequences.tensor_dict_to_minibatches = None

    from main_branch_harness import MainBranchActor

    def start(*args: object) -> None:
        rl2_on_cpu.start_gloo()
        communication.GLOO_GROUP = dist.group.WORLD

    rl2_ppo.initialize_global_process_group = start
    rl2_ppo.initialize_actor = MainBranchActor
    rl2_rollout.get_host = lambda: "127.0.0.1"


if __name__ == "__main__":
    prepare()
    if os.environ.get("GEM_RL2_RANK"):
        from gem_conformance.harness import run_rank
        from main_branch_harness import rank

        run_rank(rank)
    else:
        rl2_on_cpu.run_program()
