# /// script
# requires-python = ">=3.10"
# dependencies = ["gem[transformers]>=0.2"]
# ///
"""Makes gem_core/policies/tiny_model: a small Llama that imitates a weak player of GuessTheNumber, as a pretrained model would play it.

The player guesses inside the interval that the hints leave half of the time, and anywhere otherwise. Its transcripts are
played by the real engine: the unmodified environments, the chat template, the renderer. The model is trained on the tokens
of the player's actions alone, first on a player that always heeds the hints, from whom it learns sooner what they mean, and
then on the weak one, until it is as weak. The same seed gives the same weights on the same machine.

    python examples/make_tiny_model.py --out gem_core/policies/tiny_model
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from gem_core import Episode, Generation, Renderer, Rollout, Sampling, make, run_batch, tasks_for, token_sequences
from gem_core.policies import TransformersPolicy


@dataclass
class Args:
    out: str = "gem_core/policies/tiny_model"
    """where the model folder goes"""
    seed: int = 0
    """of everything: transcripts, weights, batches"""
    episodes: int = 6000
    """transcripts of each of the two players"""
    updates: int = 1200
    """optimizer steps, the last 500 of them on the weak player"""
    batch: int = 32
    """transcripts in a step"""
    learning_rate: float = 3e-3
    """the highest; warmed up, then lowered to zero along a cosine"""
    threads: int = 1
    """CPU threads; the matrices are so small that a second one costs more than it brings"""


GAME = "game:GuessTheNumber-v0"
VARIANTS = {f"{GAME}-easy": 0.6, f"{GAME}-hard": 0.15, f"{GAME}-random": 0.25}
"""How the transcripts are shared out."""

PAD, START, END, TEXT_END = "<|pad|>", "<|im_start|>", "<|im_end|>", "<|endoftext|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


class Player:
    """Reads the hints in the prompt, and heeds them as often as it is told to."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, heeds: float, seed: int) -> None:
        self.tokenizer, self.heeds, self.rng = tokenizer, heeds, random.Random(seed)

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        text = self.tokenizer.decode(list(prompt_ids))
        least, most = (int(n) for n in re.search(r"between (\d+) and (\d+)", text).groups())
        low, high = least, most
        for hint, number in re.findall(r"is (higher|lower) than (\d+)", text):
            low, high = (max(low, int(number) + 1), high) if hint == "higher" else (low, min(high, int(number) - 1))
        guess = self.rng.randint(low, high) if self.rng.random() < self.heeds else self.rng.randint(least, most)
        ids = [*self.tokenizer.encode(f"\\boxed{{{guess}}}"), self.tokenizer.eos_token_id]
        return Generation(tuple(ids), (0.0,) * len(ids))


def make_tokenizer(seed: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE, so that any text can be written. A number up to 99 is a token, the same one in a hint and in an answer.

    Merges run across blanks, so that the phrases of the games become single tokens: their prompts are short, and training
    on a CPU is quick.
    """
    texts = ["user\n", "assistant\n", "system\n", "tool\n"] * 100
    for env_id in VARIANTS:
        env = make(env_id)
        for start in range(100):
            texts.append(env.reset(seed=seed + start)[0])
            while not env.ended:
                action = env.sample_action()
                texts += [action, env.step(action)[0]]
    for action_format in ("boxed", "react", "tool_call", "code"):  # other ways to act are not broken into bytes either
        texts += [make(GAME, wrappers=[action_format]).reset(seed=seed)[1]["system"]] * 20
    texts += [str(number) for number in range(100)] * 50
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\d{1,2}"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=640,
        min_frequency=2,
        special_tokens=[PAD, START, END, TEXT_END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[START, TEXT_END],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        padding_side="left",
        model_max_length=2048,
    )


def make_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,  # the least that the attention kernels of inference engines take
        max_position_embeddings=2048,
        initializer_range=0.08,  # of the order of 1/sqrt(hidden_size); the usual 0.02 makes learning three times slower
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = LlamaForCausalLM(config)
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids(TEXT_END)]
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return model


def success(episodes: list[Episode]) -> float:
    return sum(bool(e.success) for e in episodes) / len(episodes)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for field in fields(Args):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default)
    args = Args(**vars(parser.parse_args()))
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    torch.use_deterministic_algorithms(True)
    rng = random.Random(args.seed)
    began = time.time()

    # tokenizer and model
    tokenizer = make_tokenizer(args.seed)
    renderer = Renderer(tokenizer)
    model = make_model(tokenizer)
    print(f"{len(tokenizer)} tokens in the vocabulary, {sum(p.numel() for p in model.parameters())} parameters")

    # the players' transcripts: (ids, 1 where the player acted)
    transcripts: dict[tuple[str, float], list[tuple[tuple[int, ...], tuple[int, ...]]]] = {}
    for heeds in (1.0, 0.5):
        for env_id, share in VARIANTS.items():
            # one at a time, so that the player's guesses do not depend on how the engine interleaves episodes
            engine = Rollout(Player(tokenizer, heeds, args.seed), renderer, concurrency=1)
            episodes = engine.run_batch(tasks_for(env_id, range(int(share * args.episodes))))
            rows = transcripts[env_id, heeds] = [(view.ids, view.mask) for e in episodes for view in token_sequences(e)]
            longest = max(len(ids) for ids, _ in rows)
            print(f"{env_id}: heeding {heeds:.0%}, {success(episodes):.1%} of {len(rows)} succeed, of up to {longest} tokens")

    # imitation: mean cross-entropy of the action tokens
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    losses: dict[str, list[float]] = {env_id: [] for env_id in VARIANTS}
    model.train()
    for update in range(args.updates):
        warm, left = min(1.0, (update + 1) / 50), (1 + math.cos(math.pi * update / args.updates)) / 2
        optimizer.param_groups[0]["lr"] = args.learning_rate * warm * left
        # one variant at a time, since its transcripts are of like length
        (env_id,) = rng.choices(list(VARIANTS), list(VARIANTS.values()))
        rows = rng.sample(transcripts[env_id, 0.5 if update >= args.updates - 500 else 1.0], args.batch)
        width = max(len(ids) for ids, _ in rows)
        ids_B_T = torch.tensor([[*ids, *[tokenizer.pad_token_id] * (width - len(ids))] for ids, _ in rows])
        seen_B_T = torch.tensor([[1] * len(ids) + [0] * (width - len(ids)) for ids, _ in rows])
        acted_B_T = torch.tensor([[*acted, *[0] * (width - len(acted))] for _, acted in rows])
        hidden_B_T_D = model.model(input_ids=ids_B_T, attention_mask=seen_B_T).last_hidden_state[:, :-1]
        wanted = acted_B_T[:, 1:].bool()
        loss = torch.nn.functional.cross_entropy(model.lm_head(hidden_B_T_D[wanted]), ids_B_T[:, 1:][wanted])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses[env_id].append(loss.item())
        if (update + 1) % 100 == 0:
            means = ", ".join(f"{k.rpartition('-')[2]} {sum(v[-20:]) / len(v[-20:]):.3f}" for k, v in losses.items() if v)
            print(f"update {update + 1}: {means}; {time.time() - began:.0f} s", flush=True)

    # save, load again, and measure what was saved
    out = Path(args.out)
    model.eval().save_pretrained(out)
    tokenizer.save_pretrained(out)
    # transformers 4 reads the template and the special tokens under these names, and 5 does so, too
    (out / "chat_template.jinja").unlink(missing_ok=True)
    config_file = out / "tokenizer_config.json"
    config = json.loads(config_file.read_text())
    config = {k: v for k, v in config.items() if k not in ("backend", "extra_special_tokens", "is_local")}
    config |= {"additional_special_tokens": [START, TEXT_END], "chat_template": CHAT_TEMPLATE}
    config |= {"tokenizer_class": "PreTrainedTokenizerFast"}
    config_file.write_text(json.dumps(config, indent=2) + "\n")
    for file in out.iterdir():
        file.chmod(0o644)  # safetensors writes for its owner alone
    model = AutoModelForCausalLM.from_pretrained(out)
    for env_id in VARIANTS:
        policy = TransformersPolicy(model, tokenizer, seed=args.seed)
        tasks = tasks_for(env_id, range(10**6, 10**6 + 400))
        episodes = run_batch(tasks, policy, renderer, sampling=Sampling(max_tokens=16), concurrency=256)
        print(f"{env_id}: the model succeeds in {success(episodes):.1%} of 400 episodes it has not seen")
    print(f"{sum(f.stat().st_size for f in out.iterdir()) / 1e6:.2f} MB in {out}, made in {time.time() - began:.0f} s")
