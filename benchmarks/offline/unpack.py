"""Unpack the archive of `pack.py` on the GPU machine, and write a start script for each trainer.

    python benchmarks/offline/unpack.py packed gpu
    python benchmarks/gpu_curves.py run runs/start verl:0 --python verl=gpu/bin/verl

Run it with the Python that has torch. A start script gives that Python the packages of one list,
gem from this repository, and the variables of a run without network.
"""

from __future__ import annotations

import argparse
import importlib
import io
import shlex
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
GEM = [str(ROOT / name) for name in ("", "plugins", "adapters")]
MOCKS = str(ROOT / "tests/adapters")
PATHS = {
    "trl": ["trl", "base", "smollm2"],
    "verl": ["verl", "base", "smollm2"],
    "openrlhf": ["openrlhf", f"{MOCKS}/openrlhf/cpu", "base", "smollm2"],
    "rl2": [f"{MOCKS}/rl2", "rl2", "base", "smollm2"],
    "skyrl": ["skyrl", f"{MOCKS}/openrlhf/cpu", "base", "smollm2"],
    "studies": ["studies", "smollm2"],
}
"""Folders on the path of each start script, without gem: of the archive, or with mocks."""
VARIABLES = {
    "HF_HUB_OFFLINE": "1",
    "RAY_ADDRESS": "local",
    "WANDB_MODE": "disabled",
    "TRL_EXPERIMENTAL_SILENCE": "1",
    "DS_SKIP_CUDA_CHECK": "1",
    "TORCH_CUDA_ARCH_LIST": "9.0",  # DeepSpeed's FusedAdam does not compile for 9.0a
    "VLLM_SERVER_ARGS": '{"gpu_memory_utilization": 0.15}',  # RL2's, beside its trainer
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", type=Path, help="folder of the parts")
    parser.add_argument("out", type=Path, help="folder of the packages and start scripts")
    args = parser.parse_args()
    if not list(args.parts.glob("part-*")):
        parser.error(f"{args.parts} has no parts; give the folder that pack.py wrote")
    out = args.out.resolve()
    extract(args.parts, out)
    for source in out.glob("*/sources/*.tar.gz"):
        flags = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--target"]
        _run("-m", "pip", "install", *flags, str(source.parents[1]), str(source))
    # the entry points of gem's plugins
    code = "from setuptools import setup; setup()"
    base = out / "gem"
    base.mkdir(exist_ok=True)
    _run("-c", code, "-q", "egg_info", "--egg-base", str(base))
    for path in start_scripts(out):
        print(path)


def _run(*arguments: str) -> None:
    if subprocess.run([sys.executable, *arguments], cwd=ROOT).returncode:
        sys.exit(f"error: {' '.join(arguments)} failed")


def extract(parts: Path, out: Path) -> None:
    """Extract all parts into `out`."""
    try:
        import zstandard
    except ImportError:
        for wheel in parts.glob("zstandard-*.whl"):
            zipfile.ZipFile(wheel).extractall(out / "zstandard")
        sys.path.insert(0, str(out / "zstandard"))
        zstandard = importlib.import_module("zstandard")
    decompressor = zstandard.ZstdDecompressor(max_window_size=2**27)
    with decompressor.stream_reader(_Joined(sorted(parts.glob("part-*")))) as stream:
        with tarfile.open(fileobj=stream, mode="r|") as tar:
            tar.extractall(out, filter="data")


class _Joined(io.RawIOBase):
    """Files that are read as one."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.blocks = self._blocks(paths)

    @staticmethod
    def _blocks(paths: Sequence[Path]) -> Iterator[bytes]:
        for path in paths:
            yield path.read_bytes()

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        return next(self.blocks, b"")


def start_scripts(out: Path) -> Iterator[Path]:
    """Write the start scripts of the lists in `out`."""
    folder = out / "bin"
    folder.mkdir(exist_ok=True)
    for name, paths in PATHS.items():
        if (out / name).is_dir():
            path = folder / name
            path.write_text(_script(out, paths), encoding="utf-8")
            path.chmod(0o755)
            yield path


def _script(out: Path, paths: Sequence[str]) -> str:
    lists = [path if path.startswith("/") else str(out / path) for path in paths]
    variables = {
        **VARIABLES,
        "PYTHONPATH": ":".join([*lists, str(out / "gem"), *GEM]),
        # the server of RL2 has the packages of base only
        "RL2_SERVER_PYTHONPATH": ":".join([str(out / "base"), f"{MOCKS}/rl2", *GEM]),
        "TORCH_EXTENSIONS_DIR": str(out / "extensions"),
    }
    lines = ["#!/usr/bin/env bash", *(f"export {k}={shlex.quote(v)}" for k, v in variables.items())]
    # Ray's sockets need short paths, and two runs different ones
    lines += ["export TMPDIR=$(mktemp -d /tmp/gem.XXXX)", "export RAY_TMPDIR=$TMPDIR"]
    return "\n".join([*lines, f'exec {shlex.quote(sys.executable)} "$@"', ""])


if __name__ == "__main__":
    main()
