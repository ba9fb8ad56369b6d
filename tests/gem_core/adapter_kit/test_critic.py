"""One value per turn from a critic that has one value per token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from byte_tokenizer import ByteTokenizer
from scripted_env import ScriptedEnv

import gem_oat
from gem_core import Episode, Message, Renderer, StopReason, Turn, TurnStatus
from gem_core.adapter_kit.critic import bootstrap_tail, critic_targets, cut_state, value_positions
from gem_core.rollout.engine import Rollout
from gem_core.rollout.interrupt import run_sync
from gem_core.rollout.limits import Limits
from gem_core.training.config import TrainingConfig
from gem_core.training.sequences import token_sequences
from gem_core.types import Generation, Sampling, Task


@dataclass
class Config(TrainingConfig):
    adapter = gem_oat.ADAPTER


def turn(added: int, sampled: int, reward: float, restarted: bool = False) -> Turn:
    return Turn((), "a", reward, tuple(range(added)), restarted, (9,) * sampled, (-0.5,) * sampled)


TURNS = (turn(4, 2, 0.0, True), turn(3, 1, 0.5), turn(2, 3, 1.0))
CUT = Episode("e", 0, TURNS, StopReason.TURN_LIMIT, final_observation="Next?")


def test_value_is_read_after_the_last_token_before_each_turn() -> None:
    # tokens: 4 of the prompt, 2 sampled, 3 observed, 1 sampled, 2 observed, 3 sampled
    assert value_positions(CUT, token_sequences(CUT)) == [(0, 3), (0, 8), (0, 11)]


def test_each_sequence_has_positions_of_its_own() -> None:
    rewritten = replace(CUT, turns=(TURNS[0], turn(5, 1, 0.5, True), TURNS[2]))
    assert value_positions(rewritten, token_sequences(rewritten)) == [(0, 3), (1, 4), (1, 7)]


def test_turn_without_tokens_uses_the_next_position() -> None:
    empty = replace(turn(3, 0, 0.5), status=TurnStatus.MASKED, logprobs=())
    between = replace(CUT, turns=(TURNS[0], empty, TURNS[2]))
    assert value_positions(between, token_sequences(between)) == [(0, 3), (0, 10), (0, 10)]
    last = replace(CUT, turns=(TURNS[0], TURNS[1], empty))
    assert value_positions(last, token_sequences(last)) == [(0, 3), (0, 8), (0, 8)]


def test_cut_state_is_the_next_prompt() -> None:
    renderer = Renderer(ByteTokenizer())
    state = cut_state(CUT, renderer)
    played = token_sequences(CUT)[0].ids
    assert state[: len(played)] == played
    text = renderer.tokenizer.decode(list(state[len(played) :]), skip_special_tokens=False)
    assert "user\nNext?" in text and text.endswith("assistant\n")
    assert cut_state(replace(CUT, stop=StopReason.TERMINATED), renderer) == ()
    assert cut_state(replace(CUT, stop=StopReason.ENV_ERROR), renderer) == ()


class Thinker:
    """A policy that thinks before each answer."""

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        text = f"<think>{len(prompt_ids)}</think>answer {len(prompt_ids)}"
        ids = (*ByteTokenizer().encode(text, add_special_tokens=False), 257)
        return Generation(ids, (-1.0,) * len(ids))


def thinking_episodes(
    style: str, mode: Any, **env_kwargs: Any
) -> tuple[Episode, Episode, Renderer]:
    """Play the same episode with a cap of two turns and to its end after three."""
    renderer = Renderer(ByteTokenizer(style), mode=mode)
    episodes = []
    for limits in (Limits(max_turns=2), Limits()):
        rollout = Rollout(
            Thinker(), renderer, limits=limits, make_env=lambda task: ScriptedEnv(**env_kwargs)
        )
        with rollout:
            episodes.append(run_sync(rollout.episode(Task("scripted", 0)), rollout.stop))
    return episodes[0], episodes[1], renderer


@pytest.mark.parametrize("mode", ["append", "template"])
@pytest.mark.parametrize("style", ["chatml", "thinking", "alternating", "none"])
def test_cut_state_is_the_prompt_that_the_next_turn_would_have(style: str, mode: str) -> None:
    cut, whole, renderer = thinking_episodes(style, mode)
    assert (cut.stop, len(whole.turns)) == (StopReason.TURN_LIMIT, 3)
    assert cut_state(cut, renderer) == whole.prompt_ids(2)
    assert cut_state(cut, renderer, max_ids=20) == whole.prompt_ids(2)[:20]
    stripped = (style, mode) == ("thinking", "template")
    assert ("<think>" not in renderer.decode(cut_state(cut, renderer))) is stripped


@pytest.mark.parametrize("mode", ["append", "template"])
def test_cut_state_has_the_role_and_suffix_of_the_next_prompt(mode: str) -> None:
    def answer(env: ScriptedEnv, action: str) -> Any:
        info = {"role": "tool", "suffix": f"Board {env.turn}."}
        return "moved", 0.0, env.turn == 2, False, info

    cut, whole, renderer = thinking_episodes("chatml", mode, answer=answer)
    state = cut_state(cut, renderer)
    assert state == whole.prompt_ids(2)
    assert "tool\nmoved\nBoard 1." in renderer.tokenizer.decode(list(state))
    assert not {"role", "suffix"} & set(whole.final_info), "the episode terminated"


def test_cut_state_begins_where_a_wrapper_rewrote_the_history() -> None:
    cut, _, renderer = thinking_episodes("chatml", "template")
    context = (Message("user", "a summary"),)
    last = replace(
        cut.turns[1], messages=context, added_ids=renderer.start(context), restarted=True
    )
    state = cut_state(replace(cut, turns=(cut.turns[0], last)), renderer)
    expected = [*context, Message("assistant", last.action), Message("user", "O2")]
    assert state == renderer.start(expected)


def test_cut_state_that_the_template_rejects_ends_with_the_action() -> None:
    cut, _, renderer = thinking_episodes("alternating", "template")
    renderer.tokenizer.apply_chat_template = lambda *_, **__: 1 / 0  # type: ignore[assignment]
    last = cut.turns[1]
    assert cut_state(cut, renderer) == (*cut.prompt_ids(1), *last.action_ids)


@pytest.mark.parametrize("mode", ["append", "template"])
def test_tail_continues_the_last_sequence(mode: str) -> None:
    """Also where the template would remove the last turn's thinking from the next prompt."""
    cut, whole, renderer = thinking_episodes("thinking", mode)
    last = token_sequences(cut)[-1]
    tail = bootstrap_tail(cut, last, renderer, 4096)
    text = renderer.tokenizer.decode([*last.ids, *tail], skip_special_tokens=False)
    assert text.endswith(
        "<|im_end|>\n<|im_start|>user\nO2<|im_end|>\n<|im_start|>assistant\n<|im_end|>"
    )
    assert text.count("<think>") == (2 if mode == "append" else 1)
    assert bootstrap_tail(whole, token_sequences(whole)[-1], renderer, 4096) == ()
    assert len(bootstrap_tail(cut, last, renderer, len(last.ids) + 5)) == 5


def test_targets_are_value_plus_advantage_also_if_advantages_are_whitened() -> None:
    config = Config(
        "game:GuessTheNumber-v0-easy",
        advantage="gae",
        gamma=0.5,
        estimator_kwargs={"lam": 0.5, "whiten": True},
    )
    # by hand: δ = (0 + 0.1 - 0.4, 0.5 + 0.3 - 0.2, 1 + 0.4 - 0.6) = (-0.3, 0.6, 0.8)
    # A = (-0.3 + 0.25 · 0.8, 0.6 + 0.25 · 0.8, 0.8) = (-0.1, 0.8, 0.8)
    (targets,) = critic_targets(config, [CUT], [[0.4, 0.2, 0.6, 0.8]])
    assert targets == pytest.approx([0.3, 1.0, 1.4])
