"""States: every environment can be brought to where another one stands, by a copy or by a replay."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from inspect import isawaitable
from typing import Any

import pytest
from scripted_env import AsyncEnv, ScriptedEnv, Shout

from gem_core import Env, list_envs, make
from gem_core.env import EnvState
from gem_core.errors import StateError
from gem_core.wrappers.history import Concat, ConcatChat
from gem_core.wrappers.limits import TokenLimit, TurnLimit
from gem_core.wrappers.statistics import Statistics

MIXTURE = "2*game:GuessTheNumber-v0-easy + game:Mastermind-v0-easy"
GAMES = list_envs("game:")
STACKS = [(), ("concat",), ("concat_chat(window=1)", "statistics"), ("turn_limit(max_turns=3)",), ("react",)]


def result_of(value: Any) -> Any:
    async def wait() -> Any:
        return await value

    return asyncio.run(wait()) if isawaitable(value) else value


def finish(env: Env) -> list[Any]:
    """The rest of an episode. Seconds are the one thing that may differ."""
    rest = []
    while not env.ended:
        step = env.step(env.sample_action())
        step[4].pop("episode", None)
        rest.append(step)
    return rest


def stand(id: str, wrappers: Any, seed: int, actions: int) -> Env:
    env = make(id, wrappers=wrappers)
    env.reset(seed=seed)
    for _ in range(actions):
        if not env.ended:
            env.step(env.sample_action())
    return env


@pytest.mark.parametrize("id", [*GAMES, MIXTURE])
def test_a_state_brings_another_instance_to_the_same_place(id: str) -> None:
    for seed in range(8 if id == MIXTURE else 2):
        env = stand(id, (), seed, 1 + seed % 2)
        state = env.get_state()
        other = make(id)
        other.set_state(state)
        twin = env.spawn(same_state=True)
        rest = finish(env)
        assert finish(other) == rest
        assert finish(twin) == rest
        other.set_state(pickle.loads(pickle.dumps(state)))
        assert finish(other) == rest, "a state can be set again, and travels"


@pytest.mark.parametrize("wrappers", STACKS, ids=str)
@pytest.mark.parametrize("id", ["game:GuessTheNumber-v0-hard", "game:GuessTheNumber-v0-random", MIXTURE])
def test_a_state_goes_through_wrappers(id: str, wrappers: Any) -> None:
    env = stand(id, wrappers, 3, 2)
    twin = env.spawn(same_state=True)
    assert type(twin) is type(env)
    assert twin.unwrapped is not env.unwrapped
    assert finish(twin) == finish(env)


@pytest.mark.parametrize("wrappers", STACKS, ids=str)
def test_spawn_alone_makes_a_new_one_with_the_same_arguments(wrappers: Any) -> None:
    env = make("game:GuessTheNumber-v0", wrappers=wrappers, max_number=77)
    env.reset(seed=1)
    twin = env.spawn()
    assert twin.unwrapped.max_number == 77
    assert twin.spec == env.spec
    with pytest.raises(RuntimeError, match="before reset"):
        twin.step("x")


def test_a_state_is_a_snapshot_not_a_view() -> None:
    env = stand("game:GuessTheNumber-v0-hard", ("concat",), 1, 1)
    state = env.get_state()
    rest = finish(env)
    env.set_state(state)
    assert finish(env) == rest


def test_an_ended_episode_has_a_state_too() -> None:
    env = stand("game:GuessTheNumber-v0-easy", (), 1, 10)
    twin = env.spawn(same_state=True)
    assert twin.ended
    with pytest.raises(RuntimeError, match="after its episode ended"):
        twin.step("x")


@pytest.mark.parametrize("kind", [ScriptedEnv, AsyncEnv])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda env: env,
        Shout,
        Concat,
        lambda env: ConcatChat(env, window=1),
        lambda env: Statistics(TurnLimit(env, 9)),
        lambda env: Shout(env=env, mark="?"),
    ],
    ids=["bare", "shout", "concat", "window", "limits", "by keyword"],
)
def test_without_snapshots_the_actions_are_replayed(kind: type[ScriptedEnv], wrap: Callable[[Env], Env]) -> None:
    log: list[str] = []
    env = wrap(kind(log=log))
    result_of(env.reset(seed=8, options={"start": "S"}))
    result_of(env.step("a"))
    state = env.get_state()
    assert (state.snapshot, state.actions, state.seed, state.options) == (None, ("a",), 8, {"start": "S"})
    log.clear()
    twin = result_of(env.spawn(same_state=True))
    assert [entry.lower() for entry in log] == ["make", "reset", "step a"]
    assert (twin.turn, twin.seed, twin.chance) == (1, 8, env.chance)
    assert result_of(twin.step("b"))[0] == result_of(env.step("b"))[0]


def test_a_replay_that_ends_elsewhere_is_refused() -> None:
    worlds = iter("ABCDEF")
    env = ScriptedEnv(begin=lambda env: (next(worlds), {}))
    env.reset(seed=1)
    with pytest.raises(StateError, match=r"ended at 'B', not at 'A': the environment is not deterministic"):
        env.set_state(env.get_state())
    with pytest.raises(RuntimeError, match="before reset"):
        env.step("x")


def test_a_nondeterministic_environment_has_no_state_to_replay() -> None:
    class Live(ScriptedEnv):
        deterministic = False

    for env in (Live(), Shout(Live())):
        env.reset(seed=1)
        with pytest.raises(StateError, match="declares itself nondeterministic"):
            env.get_state()
        with pytest.raises(StateError):
            env.spawn(same_state=True)
        assert isinstance(env.spawn(), Env)


def test_a_nondeterministic_environment_may_bring_its_own_snapshots() -> None:
    class Saved(ScriptedEnv):
        deterministic = False

        def on_snapshot(self) -> Any:
            return {"chance": self.chance}

        def on_restore(self, snapshot: Any) -> None:
            self.chance = snapshot["chance"]

    env = Shout(Saved())
    env.reset(seed=1)
    env.step("a")
    env.unwrapped.chance = 0.5
    twin = env.spawn(same_state=True)
    assert (twin.chance, twin.turn, twin.shouts) == (0.5, 1, 1)


def test_there_is_no_state_before_reset() -> None:
    with pytest.raises(StateError, match="before reset"):
        make("game:GuessTheNumber-v0").get_state()


def test_a_state_is_for_the_stack_it_was_taken_from() -> None:
    env = stand("game:GuessTheNumber-v0", ("concat",), 1, 1)
    state = env.get_state()
    for other in (env.unwrapped, env.env, ScriptedEnv(), make(MIXTURE)):
        with pytest.raises(StateError, match=r"taken from Concat\(Boxed\(GuessTheNumber\)\)"):
            other.set_state(state)
    with pytest.raises(StateError, match="takes what get_state"):
        env.set_state({"seed": 1})  # type: ignore[arg-type]


def test_a_snapshot_leaves_out_what_a_wrapper_was_given_to_call() -> None:
    class Tokenizer:
        def __deepcopy__(self, memo: Any) -> Any:
            raise AssertionError("a tokenizer is no state")

        def count(self, text: str) -> int:
            return len(text)

    env = TokenLimit(make("game:GuessTheNumber-v0-hard"), 100, Tokenizer().count)
    env.reset(seed=1)
    env.step(r"\boxed{1}")
    assert env.spawn(same_state=True).tokens == 9  # type: ignore[attr-defined]


def test_states_branch() -> None:
    """What spawn is for: several ways to go on from one place."""
    env = stand("game:GuessTheNumber-v0-hard", (), 5, 1)
    twins = [env.spawn(same_state=True) for _ in range(3)]
    said = [twin.step(f"\\boxed{{{guess}}}")[0] for twin, guess in zip(twins, (1, 25, 50))]
    assert len(set(said)) == 3
    assert env.turn == 1
    assert isinstance(env.get_state(), EnvState)
