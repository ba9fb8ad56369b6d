"""Make gem_core/policies/tiny_model: a small Llama, trained by SFT on a weak GuessTheNumber player.

    python scripts/make_tiny_model.py --out gem_core/policies/tiny_model

The weak player follows the hints in half of its guesses and guesses at random otherwise. The engine
plays its episodes in the unmodified environments, with the chat template. The loss covers only the
tokens of the player's actions. Training starts with a player that always follows the hints, because
the model learns their meaning faster from it, and ends with the weak player. The same seed gives
the same weights on the same machine.
"""

from __future__ import annotations

import json
import math
import random
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import tyro
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from gem_core import (
    Episode,
    Generation,
    Renderer,
    Rollout,
    Sampling,
    make,
    run_batch,
    tasks_for,
    token_sequences,
)
from gem_core.policies.transformers_policy import TransformersPolicy


@dataclass
class Args:
    out: str = "gem_core/policies/tiny_model"
    """the model folder to write"""
    seed: int = 0
    """the seed of episodes, weights and batches"""
    episodes: int = 6000
    """episodes of each of the two players"""
    updates: int = 1200
    """optimizer steps; the last 500 are on the weak player"""
    batch: int = 32
    """episodes per optimizer step"""
    learning_rate: float = 3e-3
    """the peak learning rate, with a warm-up and a cosine decay to zero"""
    threads: int = 1
    """CPU threads; more than one is slower, because the matrices are small"""


GAME = "game:GuessTheNumber-v0"
VARIANTS = {f"{GAME}-easy": 0.6, f"{GAME}-hard": 0.15, f"{GAME}-random": 0.25}
"""Share of the episodes by variant."""

PAD, START, END, TEXT_END = "<|pad|>", "<|im_start|>", "<|im_end|>", "<|endoftext|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


class Player:
    """Read the hints in the prompt, and follow them in a share of the guesses."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, follows: float, seed: int) -> None:
        self.tokenizer, self.follows, self.rng = tokenizer, follows, random.Random(seed)

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        text = self.tokenizer.decode(list(prompt_ids))
        least, most = (int(n) for n in re.search(r"between (\d+) and (\d+)", text).groups())
        low, high = least, most
        for hint, number in re.findall(r"is (higher|lower) than (\d+)", text):
            if hint == "higher":
                low = max(low, int(number) + 1)
            else:
                high = min(high, int(number) - 1)
        if self.rng.random() >= self.follows:
            low, high = least, most
        guess = self.rng.randint(low, high)
        ids = [*self.tokenizer.encode(f"\\boxed{{{guess}}}"), self.tokenizer.eos_token_id]
        return Generation(tuple(ids), (0.0,) * len(ids))


def make_tokenizer(seed: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer, which can encode any text.

    A number up to 99 is one token, in hints and in answers. Merges cross spaces, so phrases of the
    games become single tokens: prompts are short, and training on a CPU is fast.
    """
    texts = ["user\n", "assistant\n", "system\n", "tool\n"] * 100
    for env_id in VARIANTS:
        env = make(env_id)
        for number in range(100):
            texts.append(env.reset(seed=seed + number)[0])
            while not env.ended:
                action = env.sample_action()
                texts += [action, env.step(action)[0]]
    # keep the instructions of the action formats short, too
    for action_format in ("boxed", "react", "tool_call", "code"):
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
        head_dim=32,  # the minimum of the attention kernels of inference engines
        max_position_embeddings=2048,
        # about 1/sqrt(hidden_size); learning with the usual 0.02 is three times slower
        initializer_range=0.08,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = LlamaForCausalLM(config)
    model.generation_config.eos_token_id = [
        tokenizer.eos_token_id,
        tokenizer.convert_tokens_to_ids(TEXT_END),
    ]
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return model


def success(episodes: list[Episode]) -> float:
    return sum(bool(e.success) for e in episodes) / len(episodes)


if __name__ == "__main__":
    args = tyro.cli(Args)
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    torch.use_deterministic_algorithms(True)
    rng = random.Random(args.seed)
    began = time.time()

    # Tokenizer and model
    tokenizer = make_tokenizer(args.seed)
    renderer = Renderer(tokenizer)
    model = make_model(tokenizer)
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{len(tokenizer)} tokens in the vocabulary, {parameters} parameters")

    # Sequences of the players: (ids, loss mask)
    data: dict[tuple[str, float], list[tuple[tuple[int, ...], tuple[int, ...]]]] = {}
    for follows in (1.0, 0.5):
        for env_id, share in VARIANTS.items():
            # One episode at a time, so the guesses do not depend on the order of episodes
            engine = Rollout(Player(tokenizer, follows, args.seed), renderer, concurrency=1)
            episodes = engine.run_batch(tasks_for(env_id, range(int(share * args.episodes))))
            sequences = data[env_id, follows] = [
                (seq.ids, seq.mask) for e in episodes for seq in token_sequences(e)
            ]
            longest = max(len(ids) for ids, _ in sequences)
            print(
                f"{env_id}: follows {follows:.0%} of the hints, success {success(episodes):.1%}, "
                f"{len(sequences)} sequences of up to {longest} tokens"
            )

    # SFT: mean cross-entropy of the action tokens
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=args.learning_rate, betas=(0.9, 0.98), weight_decay=0.01
    )
    losses: dict[str, list[float]] = {env_id: [] for env_id in VARIANTS}
    model.train()
    for update in range(args.updates):
        warm_up = min(1.0, (update + 1) / 50)
        decay = (1 + math.cos(math.pi * update / args.updates)) / 2
        optimizer.param_groups[0]["lr"] = args.learning_rate * warm_up * decay
        # One variant per batch: its sequences have similar lengths
        (env_id,) = rng.choices(list(VARIANTS), list(VARIANTS.values()))
        batch = rng.sample(data[env_id, 0.5 if update >= args.updates - 500 else 1.0], args.batch)
        width = max(len(ids) for ids, _ in batch)
        ids_B_T = torch.tensor(
            [[*ids, *[tokenizer.pad_token_id] * (width - len(ids))] for ids, _ in batch]
        )
        attention_B_T = torch.tensor(
            [[1] * len(ids) + [0] * (width - len(ids)) for ids, _ in batch]
        )
        mask_B_T = torch.tensor([[*mask, *[0] * (width - len(mask))] for _, mask in batch])
        output = model.model(input_ids=ids_B_T, attention_mask=attention_B_T)
        hidden_B_T_D = output.last_hidden_state[:, :-1]
        trained_B_T = mask_B_T[:, 1:].bool()
        loss = torch.nn.functional.cross_entropy(
            model.lm_head(hidden_B_T_D[trained_B_T]), ids_B_T[:, 1:][trained_B_T]
        )
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses[env_id].append(loss.item())
        if (update + 1) % 100 == 0:
            means = ", ".join(
                f"{k.rpartition('-')[2]} {sum(v[-20:]) / len(v[-20:]):.3f}"
                for k, v in losses.items()
                if v
            )
            print(f"update {update + 1}: {means}; {time.time() - began:.0f} s", flush=True)

    # Save, load and evaluate the saved model
    out = Path(args.out)
    model.eval().save_pretrained(out)
    tokenizer.save_pretrained(out)
    # transformers 4 and 5 both read the template and the special tokens under these names
    (out / "chat_template.jinja").unlink(missing_ok=True)
    config_file = out / "tokenizer_config.json"
    config = json.loads(config_file.read_text())
    config = {
        k: v for k, v in config.items() if k not in ("backend", "extra_special_tokens", "is_local")
    }
    config |= {"additional_special_tokens": [START, TEXT_END], "chat_template": CHAT_TEMPLATE}
    config |= {"tokenizer_class": "PreTrainedTokenizerFast"}
    config_file.write_text(json.dumps(config, indent=2) + "\n")
    for file in out.iterdir():
        file.chmod(0o644)  # safetensors makes files readable by their owner only
    model = AutoModelForCausalLM.from_pretrained(out)
    for env_id in VARIANTS:
        policy = TransformersPolicy(model, tokenizer, seed=args.seed)
        tasks = tasks_for(env_id, range(10**6, 10**6 + 400))
        episodes = run_batch(
            tasks, policy, renderer, sampling=Sampling(max_tokens=16), concurrency=256
        )
        print(f"{env_id}: success {success(episodes):.1%} on 400 held-out seeds")
    size = sum(f.stat().st_size for f in out.iterdir()) / 1e6
    print(f"{size:.2f} MB in {out}, made in {time.time() - began:.0f} s")
