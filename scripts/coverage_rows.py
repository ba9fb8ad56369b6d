"""Coverage rows: what GEM and AgentGym-RL have, and what corresponds to it here."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ALGORITHMS", "CLAIMS", "ENVIRONMENTS", "INTERFACE", "Row"]


@dataclass(frozen=True)
class Row:
    """One thing of the papers. The names are looked up; `coverage_page.py` derives the state."""

    original: str
    ids: tuple[str, ...] = ()
    """Environment ids, or patterns with *."""
    offline: tuple[str, ...] = ()
    """Ids of the same kind that need no download, if `ids` do."""
    wrappers: tuple[str, ...] = ()
    estimators: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    """Without `gem-rl`."""
    differs: str = ""
    """How it differs from the original."""
    note: str = ""
    state: str = ""
    """For what has no name in a registry, such as a claim."""


ENVIRONMENTS = (
    Row("GEM: 12 games, easy, hard, random", ("game:*",), note="differences: [Games](games.md)"),
    Row("GEM: ReasoningGym, 104 tasks", ("rg:*",), note="with hardened scorers"),
    Row(
        "GEM: maths (ASDiv, GSM8K, MATH, ORZ, DeepScaleR)",
        ("math:ASDiv2K", "math:GSM8K", "math:Math12K", "math:Orz57K", "math:DeepScaleR40K"),
        ("math:Sample-v0",),
        note="with network: `gem-rl eval math:GSM8K --model NAME`",
    ),
    Row("GEM: Geometry3K, with images", note="messages carry text only"),
    Row(
        "GEM: code (CodeContest, TACO, PrimeIntellect)",
        ("code:CodeContest", "code:Taco8k", "code:PrimeIntellect15k"),
        ("code:HumanEval", "code:Sample-v0"),
        note="with network: `gem-rl eval code:CodeContest --model NAME`",
    ),
    Row(
        "GEM: QA (HotpotQA, NQ and seven test sets)",
        ("qa:HotpotQA", "qa:NaturalQuestions", "eval:*"),
        ("qa:Sample-v0", "search:MultiHop-v0"),
        note="with network: `gem-rl eval qa:HotpotQA --model NAME`",
    ),
    Row(
        "GEM: logic (RuleTaker)",
        ("logic:RuleTaker-*",),
        ("logic:Sample-v0",),
        note="with network: `gem-rl eval logic:RuleTaker-d5 --model NAME`",
    ),
    Row(
        "GEM: WikiGame",
        ("wiki:*",),
        differs="over Python's documentation ([Worlds](worlds.md))",
    ),
    Row(
        "GEM and AgentGym: WebShop",
        ("webshop:*",),
        differs="generated catalogue ([Worlds](worlds.md))",
    ),
    Row(
        "GEM: terminal (Docker, terminal-bench)",
        ("terminal:*",),
        differs="generated tasks in a persistent shell in bubblewrap ([Suites](suites.md))",
    ),
    Row(
        "GEM: MCPMark",
        ("mcp:*",),
        differs="generated tasks on MCP servers ([Suites](suites.md))",
    ),
    Row("GEM: TAU-bench retail, multi-agent", note="one agent per episode"),
    Row("AgentGym: BabyAI, 40 levels", ("babyai:*",)),
    Row("AgentGym: SciWorld, 30 tasks", ("sciworld:*",)),
    Row("AgentGym: TextCraft", ("textcraft:*",)),
    Row("AgentGym: Wordle", ("game:Wordle-v0", "game:Wordle-v0-*")),
    Row("AgentGym: MAZE", ("maze:*",), note="`maze:DoubleT-v0` is AgentGym's"),
    Row(
        "AgentGym: ALFWorld",
        ("household:*",),
        differs="own engine: six task types, same commands ([Worlds](worlds.md))",
    ),
    Row("AgentGym: BIRD", ("sql:*",), differs="generated databases ([Worlds](worlds.md))"),
    Row(
        "AgentGym: Weather, Movie, Academia, Sheet, TODO",
        ("tool:*",),
        differs="most of the functions, over generated data ([Worlds](worlds.md))",
    ),
    Row(
        "AgentGym: SearchQA",
        ("search:*",),
        differs="generated corpora; any corpus or Search-R1 server works",
    ),
    Row(
        "AgentGym: WebArena",
        ("web:*", "miniwob:*"),
        differs="own shop, forum, wiki, admin, map and repository sites in Chromium, tasks across "
        "them, and MiniWoB++ ([Worlds](worlds.md))",
    ),
    Row(
        "AgentGym's own servers, over HTTP",
        ("agentgym:*",),
        note='start AgentGym\'s server, then `make("agentgym:BabyAI-v0", url="http://...")`',
    ),
    Row(
        "AgentEval, a benchmark set",
        commands=("suite gem-eval-v1",),
        differs="40 ids, 10 seeds ([Evaluation set](evaluation_set.md))",
    ),
    Row(
        "AgentTraj, trajectories",
        commands=("export",),
        differs="experts play any id with one; records become SFT and DPO data",
    ),
)
INTERFACE = (
    Row(
        "Gymnasium-like API, registry, vectors with autoreset, async",
        state="works",
        note="[Write an environment](write_an_environment.md), [Vector environments](vector.md)",
    ),
    Row(
        "History wrappers",
        wrappers=("concat", "concat_with_action", "concat_chat", "concat_chat_on_reset"),
    ),
    Row(
        "Action formats: ReAct, function calling, code",
        wrappers=("boxed", "react", "tool_call", "code"),
    ),
    Row(
        "Python, search and MCP tools",
        wrappers=("python", "search", "retrieval", "mcp"),
        note="[Tools](tools.md)",
    ),
    Row(
        "Planning, reflection, memory",
        wrappers=("plan", "reflect", "memory"),
        note="[Worlds](worlds.md#plan-reflect-remember)",
    ),
    Row("Multi-agent interface", note="one agent per episode"),
    Row("Environment servers over HTTP", commands=("serve", "envs agentgym")),
    Row("Trajectory viewer", commands=("view",)),
    Row("Evaluation", commands=("eval", "compare", "suite")),
)
ALGORITHMS = (
    Row(
        "REINFORCE, ReBN, GRPO, RLOO, REINFORCE++",
        estimators=("reinforce", "rebn", "grpo", "rloo", "reinforce++"),
    ),
    Row(
        "PPO with a turn-level critic",
        estimators=("gae",),
        note="[Settings](settings.md) lists the trainers",
    ),
    Row("ScalingInter-RL", state="works", note="horizon schedules in every adapter"),
    Row("SFT", commands=("export",), note="also a [warm-up](warm_up.md)"),
    Row("DPO", commands=("export",), differs="it writes the data; the training is TRL's own"),
    Row(
        "AgentEvol",
        state="differs",
        note="`examples/no_framework_agentevol.py` continues from the last weights; AgentEvol "
        "restarts from the base model in every round",
    ),
    Row("oat, verl, OpenRLHF, RL2", adapters=("oat", "verl", "openrlhf", "rl2"), note="also TRL"),
    Row(
        "SkyRL",
        adapters=("skyrl",),
        note="25 updates with vLLM on one H200, longer runs on a CPU",
    ),
    Row(
        "Tinker",
        adapters=("tinker",),
        note="run on gem's local server of its API, not on the service",
    ),
    Row("ROLL", note="not on a package index; see [Other trainers](other_trainers.md)"),
    Row("Vision-language training", note="messages carry text only"),
)
CLAIMS = (
    Row(
        "ReBN beats REINFORCE; is on par with PPO and GRPO",
        state="checked at 135M",
        note="in part; [Baselines](baselines.md)",
    ),
    Row(
        "γ < 1 shortens solutions",
        state="checked at 135M",
        note="yes; [Baselines](baselines.md)",
    ),
    Row(
        "Tools improve maths and QA",
        state="checked at 135M",
        note="yes, on made tasks; [Baselines](baselines.md)",
    ),
    Row(
        "Asynchronous rollout doubles the speed",
        state="checked",
        note="[Asynchronous rollout](async_rollout.md)",
    ),
    Row(
        "Growing horizons train better than fixed ones",
        state="checked at 135M",
        note="not better than a long one; [Baselines](baselines.md)",
    ),
    Row(
        "A 7B model matches commercial models on WebArena and BabyAI",
        state="elsewhere",
        note="the weights and services are not available offline: "
        "`gem-rl eval babyai:GoToRedBall-v0 --model NAME --server URL`",
    ),
    Row(
        "Strong models on MCP and terminal tasks",
        state="elsewhere",
        note="`gem-rl eval mcp:Workplace-v0 terminal:Any-v0 --model NAME --server URL`",
    ),
    Row(
        "Training on one task improves others",
        state="checked at 135M",
        note="no: the mean over 18 others rises after one of six trainings and falls after three; "
        "[Studies](studies.md#transfer)",
    ),
)
