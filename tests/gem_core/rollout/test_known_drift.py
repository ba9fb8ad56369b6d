"""Known failures of multi-turn training elsewhere, each as a small test of gem.

`docs/drift.md` explains them. Every test names the public issue that describes the failure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from byte_tokenizer import ByteTokenizer
from scripted_env import ScriptedEnv

from gem_core import (
    Env,
    Episode,
    Generation,
    Renderer,
    Rollout,
    ScriptedPolicy,
    Task,
    advantages,
    token_sequences,
)
from gem_eval.export import sft_rows

END = ByteTokenizer.eos_token_id
HE, LLO, HELLO = 300, 301, 302
PIECES = {HE: "he", LLO: "llo", HELLO: "hello"}
THINKING = ["<think>one</think>\n\n1", "<think>two</think>\n\n2", "<think>three</think>\n\n3"]


class MergingTokenizer(ByteTokenizer):
    """A byte tokenizer with merges: "hello" is one token, unless a model samples "he" and "llo"."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        before, *after = text.split("hello")
        ids = super().encode(before, add_special_tokens=add_special_tokens)
        for part in after:
            ids += [HELLO, *super().encode(part, add_special_tokens=False)]
        return ids

    def decode(
        self, token_ids: Iterable[int], *, skip_special_tokens: bool = False, **settings: bool
    ) -> str:
        return "".join(
            PIECES[id]
            if id in PIECES
            else ByteTokenizer.decode(self, [id], skip_special_tokens=skip_special_tokens)
            for id in token_ids
        )


class Recorder:
    """A policy that keeps the prompts it gets."""

    def __init__(self, policy: ScriptedPolicy) -> None:
        self.policy = policy
        self.prompts: list[list[int]] = []

    async def generate(self, prompt_ids: Any, sampling: Any) -> Generation:
        self.prompts.append(list(prompt_ids))
        return await self.policy.generate(prompt_ids, sampling)


def play(tokenizer: ByteTokenizer, script: Any, mode: Any = "append") -> tuple[Episode, Recorder]:
    """Three turns: the environment answers O1, O2, O3 and pays 1, 2, 3."""

    def make_env(task: Task) -> Env:
        return ScriptedEnv()

    policy = Recorder(ScriptedPolicy(script, tokenizer))
    with Rollout(policy, Renderer(tokenizer, mode), make_env=make_env) as rollout:
        (episode,) = rollout.run_batch([Task("test:Scripted-v0", seed=1)])
    assert not episode.failed, episode.failure
    return episode, policy


def test_split_tokens_keep_their_ids_in_later_prompts() -> None:
    """trl#5224: decoding and re-encoding turns the sampled [he, llo] into [hello]."""
    tokenizer = MergingTokenizer()
    sampled = Generation((HE, LLO, END), (-1.0, -2.0, -0.5))
    assert tokenizer.encode(tokenizer.decode([HE, LLO]), add_special_tokens=False) == [HELLO]
    episode, policy = play(tokenizer, [sampled, sampled, sampled])
    (sequence,) = token_sequences(episode)
    trained = [id for id, m in zip(sequence.ids, sequence.mask) if m]
    assert trained == [HE, LLO, END] * 3
    assert HELLO not in policy.prompts[-1]


def test_loss_mask_and_logprobs_have_the_length_of_the_ids() -> None:
    """trl#5144: after re-encoding, the tool mask was longer than the completion."""
    sampled = Generation((HE, LLO, END), (-1.0, -2.0, -0.5))
    episode, _ = play(MergingTokenizer(), [sampled, "hello", sampled])
    (sequence,) = token_sequences(episode)
    assert sequence.logprobs is not None
    assert len(sequence.ids) == len(sequence.mask) == len(sequence.logprobs)
    logprobs = [p for p, m in zip(sequence.logprobs, sequence.mask) if m]
    assert logprobs == [-1.0, -2.0, -0.5, -0.5, -0.5, -1.0, -2.0, -0.5]


def test_turn_separator_of_the_template_is_appended_and_not_trained() -> None:
    """verl#6501, verl#6921: the newline after a turn, which no model samples, was lost."""
    tokenizer = ByteTokenizer()
    episode, _ = play(tokenizer, ["1", "2", "3"])
    (sequence,) = token_sequences(episode)
    messages = [{"role": "user", "content": "T"}]
    for turn, action in enumerate(["1", "2"]):
        messages += [
            {"role": "assistant", "content": action},
            {"role": "user", "content": f"O{turn + 1}"},
        ]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
    assert list(sequence.ids[: sequence.spans[-1][1]]) == tokenizer.encode(
        prompt, add_special_tokens=False
    )
    assert [sequence.ids[start:end] for _, start, end in sequence.spans] == [
        (ord(action), END) for action in "123"
    ]


@pytest.mark.parametrize(("mode", "sequences"), [("append", 1), ("template", 3)])
def test_template_that_strips_thinking_trains_every_sampled_token_once(
    mode: str, sequences: int
) -> None:
    """verl#6854, prime-rl#1334: history without thinking does not extend the sampled ids."""
    tokenizer = ByteTokenizer("thinking")
    episode, policy = play(tokenizer, THINKING, mode)
    views = token_sequences(episode)
    assert len(views) == sequences
    trained = [id for view in views for id, m in zip(view.ids, view.mask) if m]
    sampled = [id for turn in episode.turns for id in turn.action_ids]
    assert trained == sampled, "each sampled token once, in order, with the ids of the sampler"
    kept = tokenizer.decode(policy.prompts[-1]).count("<think>")
    assert kept == (2 if mode == "append" else 0)
    for view in views:
        first_turn = view.spans[0][0]
        assert view.ids[: view.prompt_length] == episode.prompt_ids(first_turn)


def test_restarted_turn_has_the_messages_of_its_complete_prompt() -> None:
    episode, _ = play(ByteTokenizer("thinking"), THINKING, "template")
    assert [len(turn.messages) for turn in episode.turns] == [1, 3, 5]
    *_, last = sft_rows([episode], min_return=0.0)
    contents = [message["content"] for message in last["prompt"]]
    assert contents == ["T", THINKING[0], "O1", THINKING[1], "O2"]


def test_decoding_keeps_all_spaces() -> None:
    class Cleaning(ByteTokenizer):
        def decode(self, token_ids: Any, **settings: Any) -> str:
            text = super().decode(token_ids, **settings)
            cleans = settings.get("clean_up_tokenization_spaces", True)
            return text.replace(" .", ".") if cleans else text

    episode, _ = play(Cleaning(), ["a . b", "c", "d"])
    assert episode.turns[0].action == "a . b"


def test_later_prompts_contain_the_whole_history() -> None:
    """prime-rl#1383: with more than two turns, the prefix lost all but the last step."""
    episode, policy = play(ByteTokenizer(), ["1", "2", "3"])
    for turn in (1, 2):
        before = [*policy.prompts[turn - 1], *episode.turns[turn - 1].action_ids]
        assert policy.prompts[turn][: len(before)] == before
        assert tuple(policy.prompts[turn]) == episode.prompt_ids(turn)


@pytest.mark.parametrize("mode", ["append", "template"])
def test_advantage_of_a_turn_does_not_depend_on_the_number_of_sequences(mode: str) -> None:
    """trl#6250: an episode may become 1 to T sequences; its returns stay the same."""
    episode, _ = play(ByteTokenizer("thinking"), THINKING, mode)
    (returns,) = advantages([episode], "reinforce", gamma=0.5)
    assert returns == [1 + 0.5 * (2 + 0.5 * 3), 2 + 0.5 * 3, 3]
    per_token = {
        turn: {view.broadcast(returns)[i] for i in range(start, end)}
        for view in token_sequences(episode)
        for turn, start, end in view.spans
    }
    assert per_token == {turn: {value} for turn, value in enumerate(returns)}
