"""The runs of `studies.py`, fixed before they are run, with what they test.

**algorithms/** REINFORCE, ReBN, GRPO, RLOO, REINFORCE++ and PPO on seven environments, eight seeds
each: sparse and dense rewards, one turn and several, with and without tools. For every environment,
ReBN is compared with each other algorithm by the return on held-out seeds: an exact two-sided
permutation test over the seeds, at a false discovery rate of 5 % over all 35 tests.

**ratio/** ReBN, GRPO and PPO with two epochs of two mini-batches and PPO's clipping, where the
ratio differs from 1, on three of the environments. Each is compared with its own single step: nine
tests.

**credit/** Three environments of `credit.py` with known credit. `python benchmarks/credit.py`
prints how far the advantages of right and wrong choices are apart, before any training. From that
table:

- `PayNow`: ReBN with γ = 0.5 learns faster than with γ = 1, and both faster than episode-level
  credit.
- `PayLate`: episode-level credit and ReBN with γ = 1 learn equally fast. ReBN with γ = 0.5 does not
  learn: the discount removes the reward and keeps the noise. PPO with λ = 0.5 sees the key in the
  observation and should learn at least as fast as γ = 1.
- `PayLast`: ReBN learns faster than episode-level credit, with any discount.

**critic/** was added on 2026-11-19, after all runs of credit/, to find out why PPO with λ = 0.5
does badly there. `python benchmarks/credit.py` now also prints the separations of PPO. In `PayLate`
it is 0.06 with a critic that predicts 0, as for ReBN with γ = 0.5, and 2.58 with exact values. With
λ = 0.95 it is 1.05 even with a critic that predicts 0. So a critic that has not learned would be
the reason. Three changes, one at a time, eight seeds each:

- `PayLate`, after 100 batches of the first policy that train the critic alone: learns faster than
  PPO in credit/. This counts only if the critic has learned. For a random player, `credit.py`
  prints a loss of 2.20 if it predicts 0 and of 1.62 with exact values, so the mean of the last ten
  batches must be below 1.75.
- `PayLate`, with λ = 0.95: learns faster than PPO in credit/.
- `PayLast`, without the coins: if a run loses the door again (its success, as the mean of 5
  updates, ends 0.2 or more below its highest), then the noise is not the reason for the two runs of
  credit/ that do.

"Learns faster" has the rules of credit/, over the updates of the policy: two exact permutation
tests, at a false discovery rate of 5 %. The batches before the first update do not count.

**transfer/** ReBN on each of six environments and on their mixture, three seeds each, then
evaluated on 18 others.

**tuning/** The learning rate of each algorithm: the best of three by the mean return of the last
ten updates on four environments, with seed 100, which no other run uses. RLOO uses the rate of
GRPO, and REINFORCE++ that of ReBN. All studies but larger/ use these rates, so in credit/, too, an
algorithm has the rate that is best for it elsewhere.

**horizon/** was added on 2026-11-16, when 72 runs of the other studies were done and none of its
own. ReBN with γ = 1 on the corridors of `corridor.py`, five seeds, each run until it has sampled
300,000 tokens. The horizon is 5 or 40 turns, or grows from 5 over 10 and 20 to 40: every 5 or 10
updates, or when the success of a stage is at least 80 % of what its turns allow (the gates 0.4, 0.6
and 0.8). All are evaluated with 40 turns. `python benchmarks/corridor.py` prints how far the
advantages of right and wrong choices of a random player are apart: 0.39 deviations with 5 turns,
0.14 with 40. At equal distance from chance, 40 turns thus need (0.39 / 0.14)² ≈ 8 times the
choices, and tokens are spent per choice. From that table:

- 5 turns: learns the first rooms fastest, never sees the later rooms, and stays below 85 %
  success, because it leaves few corridors of 16 rooms.
- 40 turns: learns slowest per token.
- Each growing horizon and the gated one end with a higher success than 5 turns and than 40 turns:
  six exact permutation tests, at a false discovery rate of 5 %.
- Nothing is predicted about the order of the three.
- A run is unstable if its success in training (mean of 5 updates) ends 0.2 or more below its
  highest value at the same horizon. AgentGym-RL reports that of long horizons. Nothing in the table
  predicts it here: a wrong door never ends an episode. Only an answer without a door does, and
  takes 0.1; a long episode has more chances for one.

Changed on 2026-11-19, when 22 of 26 runs were done: the predictions about who learns fastest and
slowest are not judged. They used the success in training on two rooms, and a long horizon succeeds
there by chance: with 40 turns it was 100 % before any update. AgentGym-RL's claim about growing
horizons is decided by the four tests of the two growing ones; gating by success is not its method.

**async/** was added on 2026-11-17, before any of its runs. ReBN on GuessTheNumber whose steps sleep
for a log-normal time (`uneven.py`: median 0.05 s, σ = 1.5, at most 5 s), 64 episodes per update, 50
updates, five seeds. Three rollouts: `sync`; `one-off`, with two batches in flight and weights that
are at most one update old; and `stream`, whose updates take the first 64 episodes that end. The
asynchronous ones train on the sampled tokens, with PPO's clipped ratio to the logprobs recorded at
sampling. Measured is the time until the success in training (mean of 5 updates) reaches 75 %; a run
that does not reach it counts with its whole time. (Added after the first run on a CPU: the first
update does not count, because it starts processes and compiles. Changed on 2026-11-19, before any
run on a GPU: the second update does not count either, because the asynchronous rollouts play its
batch during the first. If a run does not reach 75 %, its test is open: asynchronous updates take
less time, so a run that learns nothing would win.) `python benchmarks/uneven.py`
prints how long an update waits for the environment: 3.6 s, 1.9 s and 0.5 s. From that table:

- `one-off` and `stream` reach 75 % in less time than `sync`: two exact permutation tests, at a
  false discovery rate of 5 %.
- `stream` needs less than half the time of `sync`, if sampling and update take a second or less.
- Old weights do not slow down learning: the mean number of updates until 75 % differs by less than
  a quarter from that of `sync`.

With the tiny model on a CPU (`studies_cpu.py`), three seeds and 30 updates: no test. The frameworks
(`async_frameworks.py`) train on the same environment in their own synchronous and asynchronous
modes, two seeds each: verl on a GPU, OpenRLHF and RL2 with the tiny model on a CPU. The release of
RL2 has asynchronous rollout only, no asynchronous training.

**scenarios/** was added on 2026-11-17, before any of its runs. SFT on the solved episodes of an
expert on 256 seeds (60 updates of 32 episodes), then ReBN (40 updates of 64 episodes). With SmolLM2
on a GPU, three seeds each: TextCraft of depth 1 and deep search with their own experts, and BabyAI
(GoToLocalS8N7) with the script of `scenarios.py`. The start is the model of the other studies,
whose warm-up has shown it the actions of random players. Web (MiniWoB++, click-button), terminal
(CountErrors) and SciWorld (lifespan-longest-lived) need Chromium, bubblewrap and Java, which the
GPU machine lacks. The tiny model trains on them on a CPU (`studies_cpu.py`), once each: 300 updates
of SFT (8 of the episodes of 64 seeds each), and 10 updates of RL (16 episodes). (These settings of
SFT followed a pilot with seed 100, after a first run in Web with 100 updates of 32 episodes and a
third of the rate: it did not learn the format, and solved nothing in any stage.)

Measured before, after SFT and after RL on held-out seeds: the share solved within 1, 2, ... turns,
and pass@k from eight episodes per seed (four on the CPU). Held-out seeds may have tasks that the
expert's seeds also have: 27 of 32 in deep search, 15 in TextCraft, 2 in BabyAI. Predictions for the
GPU; three seeds give no test, and the tiny model may learn no more than the format:

- SFT raises the success of a single try in all three.
- RL raises it further in at least two of the three.
- RL raises a single try by more than it raises pass@8.

**few/** was added on 2026-11-19, after all runs of scenarios/ on the GPU, in which SFT left RL
little to gain: more than 99 % of the single tries are solved after SFT in two of the three, and in
the third, eight tries of a task have almost the same outcome as one. The same three scenarios with
fewer updates of SFT: of 2, 4, 8 and 16 (runs few/pilot-..., with seed 100 and without RL), the
fewest after which a single try solves 20 to 70 %, or the one nearest to 45 %. Then 30 updates of
RL, seven seeds. For each scenario, the success of a single try after RL is compared with that after
SFT of the same run: three exact sign-flip tests over the seeds, at a false discovery rate of 5 %.
Prediction: RL raises it in all three.

**larger/** was added on 2026-11-17, before any of its runs. REINFORCE, ReBN and GRPO on three
environments of algorithms/ (GuessTheNumber, Hangman and chain_sum) with Qwen2.5-Coder-1.5B-Instruct
(`larger_model.py`), three seeds, 30 updates of 64 episodes. The model is instruction-tuned, so it
trains without an SFT warm-up, with its own chat template. In a pilot on a CPU (eight wordings of
the prompt, two to eight first turns each, untrained), it explained its answer for 40 tokens and
more, or, when asked not to, gave the action without the box. So the prompt asks for no explanation
(`brief.py`), and an answer without a box goes to the environment as it is. The learning rate is a
third of that of tuning/ (3e-5 for all three), rounded, and not tuned further: larger models need
lower rates, but the first weights are in bfloat16, and with much lower rates few of them would
change in 30 updates. (Changed on 2026-11-19, before any run: GRPO had 3e-5, a third of a rate of
the tuning that was removed.)

Measured are return and success on 256 held-out seeds, before and after training. By the rules of
these studies a test needs four seeds, so there is none. One algorithm counts as above another if
its lowest seed is above the other's highest. Prompts and formats differ from those of algorithms/,
so the two models are not compared with each other. Predictions:

- Before training, the success on chain_sum is above 50 %.
- The mean return of every algorithm is above that of the untrained model on GuessTheNumber and on
  Hangman.
- On no environment is REINFORCE or GRPO above ReBN. (A check rather than a prediction: with three
  seeds, this holds three times in four if the algorithms do not differ.)

**changes** The following changes concern several studies.

Changed on 2026-11-18, before any run from the present weights: the 72 runs so far (24 of tuning/,
40 of algorithms/, all of before/ and speed/) started from a warm-up that could not be made again,
because its tasks differed between machines. They were removed. Their rates came from two
environments, and some algorithms collapsed with them on others, so there are now four. transfer/
had one seed. Untrained models are now evaluated on more seeds, because all algorithms are compared
with the same evaluation; the comparison uses the first 256 seeds, which trained models have.

Changed on 2026-11-19, when 208 runs were done (all of tuning/, before/, credit/ and speed/, and 56
of algorithms/): several runs may share a process (`--lanes`). Their samples come from the same
distribution up to rounding, but a run no longer draws them with its own seed; the tasks still
follow from its seed. Result files since then have the number of lanes.

Changed on 2026-11-19, when those 208 runs, critic/, scenarios/ and 22 runs of horizon/ were done:
transfer/ compares each task with itself, and its three runs were removed, because many episodes in
BabyAI did not fit into their context of 1,024 tokens. async/, few/, horizon/ and larger/ say
themselves what changed in them. Intervals are Student's t, because bootstrap intervals of few seeds
are too narrow; credit/ and critic/ keep theirs. algorithms/ has a second measure, without a test:
the mean return in training over all updates, which also counts how fast an algorithm learns.

Changed on 2026-11-19, when 263 runs were done: a decoding step has fewer kernels, and after 28 more
runs (seed 4 of four schedules of horizon/, and 24 of few/), training has CUDA graphs. Sampling and
gradients are the same up to rounding: `graph_gradients.py` compares the gradients, and the mean
difference between the logprobs of sampler and trainer (`apart` in the result files) has stayed in
the same range.

Changed on 2026-11-19, when 353 runs were done: the engine compiles its layers for fixed widths,
which changes the rounding only. In the intervals of transfer/, held-out seeds that draw the same
question count as one.

Changed on 2026-11-19, when 513 runs were done: a training pass without a CUDA graph of its size may
be padded to a larger graph. This changes the rounding only.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from algorithms_plan import (
    GROUPED,
    GUESS,
    HANGMAN,
    MATHS,
    RATES,
    SEARCH,
    SETTINGS,
    SUM,
    TUNED_AS,
    Run,
    Setting,
    Steps,
)

__all__ = [
    "ASYNC_SEEDS",
    "CRITIC",
    "ENVIRONMENTS",
    "FEW_SEEDS",
    "FEW_UPDATES",
    "HORIZON_SEEDS",
    "LARGER_ON",
    "LARGER_RATES",
    "LARGER_SEEDS",
    "LARGER_SHA256",
    "RESULTS",
    "SCENARIOS",
    "SCENARIO_SEEDS",
    "SCHEDULES",
    "SEEDS",
    "TRANSFER_SEEDS",
    "async_runs",
    "plan",
]

RESULTS = Path(__file__).parent / "results" / "studies"
SEEDS = 8
_BY_ID = {setting.env: setting for setting in SETTINGS}
ENVIRONMENTS: dict[str, tuple[Setting, int]] = {
    "GuessTheNumber": (GUESS, 128),
    "Hangman": (HANGMAN, 64),
    "TowerofHanoi": (_BY_ID["game:TowerofHanoi-v0-easy"], 64),
    "TextCraft": (_BY_ID["textcraft:TextCraft-v0-depth1"], 64),
    "chain_sum": (SUM, 128),
    "maths-python": (replace(MATHS, tools="python(max_uses=1)"), 128),
    "facts-search": (replace(SEARCH, tools="search(index='{work}/index',k=1,max_uses=1)"), 128),
}
"""Setting and episodes per update of algorithms/; games with many turns have fewer."""
TUNED_ON = ("GuessTheNumber", "Hangman", "TowerofHanoi", "chain_sum")
RATIO_ON = ("GuessTheNumber", "Hangman", "chain_sum")
SEVERAL = Steps(epochs=2, mini_batches=2)
CREDIT = {
    "episode": ("episode", 1.0, 0.95),
    "rebn-1": ("rebn", 1.0, 0.95),
    "rebn-0.5": ("rebn", 0.5, 0.95),
    "ppo-0.5": ("ppo", 1.0, 0.5),
}
"""Estimator, discount and lambda of credit/."""
CRITIC: dict[str, tuple[Setting, dict[str, object]]] = {
    "PayLate-trained": (
        Setting("credit:PayLate-v0", tokens=12),
        {"lam": 0.5, "critic_batches": 100},
    ),
    "PayLate-0.95": (Setting("credit:PayLate-v0", tokens=12), {"lam": 0.95}),
    "PayLast-quiet": (Setting("credit:PayLast-v0", {"noise": 0.0}, tokens=12), {"lam": 0.5}),
}
"""Environment and settings of the PPO runs of critic/."""
TRAINED_ON = ("GuessTheNumber", "Hangman", "TowerofHanoi", "TextCraft", "chain_sum")
CORRIDOR = Setting("horizon:Corridor-v0", tokens=12)
SCHEDULES = {
    "fixed-5": "5",
    "fixed-40": "40",
    "growing-5": "5,10,20,40@5",
    "growing-10": "5,10,20,40@10",
    "gated": "5,10,20,40@>0.4,0.6,0.8",
}
"""Horizons of horizon/, in the notation of `horizon.py`."""
HORIZON_SEEDS = 5
HORIZON_TOKENS = 300_000
TRANSFER_SEEDS = 3
ASYNC_SEEDS = 5
SCENARIOS = {
    "TextCraft": Setting("textcraft:TextCraft-v0-depth1", {"max_turns": 8}, tokens=24),
    "DeepSearch": Setting("search:DeepSearch-v0", {"k": 1, "max_turns": 8}, tokens=24),
    "BabyAI": Setting("babyai:GoToLocalS8N7-v0", {"max_turns": 8}, tokens=24),
}
SCENARIO_SEEDS = 3
FEW_SEEDS = 7
FEW_UPDATES = (2, 4, 8, 16)
"""Updates of SFT in few/, of which its pilot chooses."""
LARGER_SHA256 = "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046"
"""Of the GGUF file of the larger model; `larger_model.py` makes the model."""
LARGER_ON = ("GuessTheNumber", "Hangman", "chain_sum")
LARGER_RATES = {"rebn": 1e-5, "reinforce": 1e-5, "grpo": 1e-5}
LARGER_SEEDS = 3
LARGER_WRAPPERS = "boxed(place='observation',on_error='pass'),brief"
UNEVEN = Setting("uneven:GuessTheNumber-v0", tokens=16)


def plan() -> list[Run]:
    """Return all runs, the most important ones first."""
    alone: dict[str, object] = {"episodes": 256, "updates": 20, "rate": RATES[1], "timed": True}
    runs = [_run("speed/alone", GUESS, "rebn", **alone)]
    for name in TUNED_ON:
        setting, episodes = ENVIRONMENTS[name]
        for rate in RATES:
            for algorithm in dict.fromkeys(TUNED_AS.values()):
                title = f"tuning/{name}-{algorithm}-{rate:g}"
                size = {"episodes": episodes, "seed": 100, "rate": rate}
                runs.append(_run(title, setting, algorithm, **size))
    for name, (setting, _) in ENVIRONMENTS.items():
        runs.append(Run(f"before/{name}", setting, "none", updates=0, evaluated=1024))
    for seed in range(SEEDS):
        runs += _algorithms(seed)
    for seed in range(SEEDS):
        runs += _credit(seed)
    for seed in range(SEEDS):
        runs += _critic(seed)
    runs += [*_transfer(), *_horizon(), *async_runs("async/", ASYNC_SEEDS, 50), *_scenarios()]
    for seed in range(SEEDS):
        runs += _ratio(seed)
    return runs + _larger()


def _algorithms(seed: int) -> list[Run]:
    return [
        _run(f"algorithms/{name}-{algorithm}-{seed}", setting, algorithm, seed, episodes=episodes)
        for name, (setting, episodes) in ENVIRONMENTS.items()
        for algorithm in TUNED_AS
    ]


def _ratio(seed: int) -> list[Run]:
    runs = []
    for name in RATIO_ON:
        setting, episodes = ENVIRONMENTS[name]
        for algorithm in ("rebn", "grpo", "ppo"):
            title, more = f"ratio/{name}-{algorithm}-{seed}", {"episodes": episodes}
            runs.append(_run(title, setting, algorithm, seed, steps=SEVERAL, **more))
    return runs


def _credit(seed: int) -> list[Run]:
    runs = []
    for env in ("PayNow", "PayLate", "PayLast"):
        setting = Setting(f"credit:{env}-v0", tokens=12)
        for name, (algorithm, gamma, lam) in CREDIT.items():
            title, more = f"credit/{env}-{name}-{seed}", {"gamma": gamma, "lam": lam}
            runs.append(_run(title, setting, algorithm, seed, episodes=64, **more))
    return runs


def _critic(seed: int) -> list[Run]:
    runs = []
    for name, (setting, more) in CRITIC.items():
        more = {"gamma": 1.0, "episodes": 64, "warm_up": False, **more}
        runs.append(_run(f"critic/{name}-{seed}", setting, "ppo", seed, **more))
    return runs


def _transfer() -> list[Run]:
    trained = [ENVIRONMENTS[name][0] for name in TRAINED_ON] + [_BY_ID["rg:syllogism"]]
    others = tuple(s for s in SETTINGS if s.env not in {t.env for t in trained})
    runs = [Run("transfer/none", GUESS, "none", updates=0, evaluated=128, transfer=others)]
    for seed in range(TRANSFER_SEEDS):
        more = {"seed": seed, "episodes": 96, "evaluated": 128, "transfer": others}
        for setting in trained:
            name = setting.env.partition(":")[2].partition("-v0")[0]
            runs.append(_run(f"transfer/{name}-{seed}", setting, "rebn", **more))
        mixture = {"mixture": tuple(trained), **more}
        runs.append(_run(f"transfer/mixture-{seed}", GUESS, "rebn", **mixture))
    return runs


def _horizon() -> list[Run]:
    # A warm-up on corridors would change the model that the other studies started from. Their
    # prompts and answers are those of the credit environments, which it does contain.
    more: dict[str, object] = {"gamma": 1.0, "warm_up": False}
    runs = [_run("horizon/before", CORRIDOR, "none", updates=0, **more)]
    # 5 turns take about 180 updates for their tokens
    more |= {"episodes": 64, "updates": 400, "token_budget": HORIZON_TOKENS}
    for seed in range(HORIZON_SEEDS):
        for name, horizon in SCHEDULES.items():
            title = f"horizon/{name}-{seed}"
            runs.append(_run(title, CORRIDOR, "rebn", seed, horizon=horizon, **more))
    return runs


def _scenarios() -> list[Run]:
    more: dict[str, object] = {"episodes": 64, "warm_up": False, "passes": 8}
    runs = [
        _run(f"scenarios/{name}-{seed}", s, "rebn", seed, updates=40, expert_updates=60, **more)
        for seed in range(SCENARIO_SEEDS)
        for name, s in SCENARIOS.items()
    ]
    for name, s in SCENARIOS.items():
        for count in FEW_UPDATES:
            own = {**more, "seed": 100, "updates": 0, "expert_updates": count}
            runs.append(_run(f"few/pilot-{name}-{count}", s, "rebn", **own))
    return runs + [
        _run(f"few/{name}-{seed}", s, "rebn", seed, expert_pilot=f"few/pilot-{name}", **more)
        for seed in range(FEW_SEEDS)
        for name, s in SCENARIOS.items()
    ]


def _larger() -> list[Run]:
    settings = {name: replace(ENVIRONMENTS[name][0], tools=LARGER_WRAPPERS) for name in LARGER_ON}
    more: dict[str, object] = {"warm_up": False, "gguf_sha256": LARGER_SHA256}
    runs = [
        _run(f"larger/{name}-before", setting, "none", updates=0, **more)
        for name, setting in settings.items()
    ]
    for seed in range(LARGER_SEEDS):
        for name, setting in settings.items():
            for algorithm, rate in LARGER_RATES.items():
                title = f"larger/{name}-{algorithm}-{seed}"
                runs.append(_run(title, setting, algorithm, seed, episodes=64, rate=rate, **more))
    return runs


def async_runs(prefix: str, seeds: int, updates: int, rate: float | None = None) -> list[Run]:
    """Return the runs with uneven step times; the model's warm-up lacks their environment."""
    more = {"updates": updates, "episodes": 64, "rate": rate, "warm_up": False, "timed": True}
    return [
        _run(f"{prefix}{name}-{seed}", UNEVEN, "rebn", seed, rollout=name, **more)
        for seed in range(seeds)
        for name in ("sync", "one-off", "stream")
    ]


def _run(name: str, setting: Setting, algorithm: str, seed: int = 0, **more: object) -> Run:
    # GRPO and RLOO compare whole episodes
    gamma = 1.0 if algorithm in GROUPED else 0.9
    return Run(name, setting, algorithm, **{"seed": seed, "gamma": gamma, **more})  # type: ignore[arg-type]
