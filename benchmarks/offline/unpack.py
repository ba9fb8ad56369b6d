"""Unpack the archive of `pack.py` on the GPU machine, and write a start script for each trainer.

    python benchmarks/offline/unpack.py packed gpu
    gpu/bin/trl benchmarks/gpu_curves.py run runs/start trl:0 verl:0 --python verl=gpu/bin/verl

Run it with the Python of that machine: 3.12 on x86-64, with torch, transformers, pip and
setuptools. `studies` also needs a C compiler. A start script starts this Python with the packages
of its list, with gem from this repository, and with the variables of a run without network on an
H100 or H200. Each start makes a folder /tmp/gem.XXXX for temporary files, and leaves it there.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import importlib.util
import io
import platform
import shlex
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", type=Path, help="folder of the parts")
    parser.add_argument("out", type=Path, help="folder of the packages and start scripts")
    args = parser.parse_args()
    if args.out.exists() and (not args.out.is_dir() or any(args.out.iterdir())):
        parser.error(f"{args.out} is not an empty folder; remove it, or choose another one")
    try:
        check_python()
        out = args.out.resolve()
        extract(args.parts, out)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    for source in out.glob("*/sources/*.tar.gz"):
        flags = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--target"]
        _run("-m", "pip", "install", *flags, str(source.parents[1]), str(source))
    compile_modules(out)
    write_entry_points(out / "gem")
    for name, lists in PATHS.items():
        missing = [path for path in lists if not (out / path).is_dir()]
        if name not in missing:
            script = "" if missing else start_script(out, name)
            print(script or f"{name} has no start script: pack {', '.join(missing)}, too")


def check_python() -> None:
    """Raise ValueError if the packed packages do not run on this Python."""
    found = f"Python {sys.version_info[0]}.{sys.version_info[1]} on {platform.machine()}"
    if found != "Python 3.12 on x86_64":
        raise ValueError(f"the packages are for Python 3.12 on x86_64; this is {found}")
    for name in ("torch", "transformers", "pip", "setuptools"):
        if importlib.util.find_spec(name) is None:
            raise ValueError(f"{sys.executable} has no module {name}")


def extract(parts: Path, out: Path) -> None:
    """Check all parts, and extract them into `out`."""
    if not (parts / "SHA256SUMS").is_file():
        raise ValueError(f"{parts} has no parts; give the folder that pack.py wrote")
    paths = []
    for line in (parts / "SHA256SUMS").read_text(encoding="utf-8").splitlines():
        expected, _, name = line.partition("  ")
        paths.append(parts / name)
        if not paths[-1].is_file():
            raise ValueError(f"{paths[-1]} is missing; copy it again")
        if hashlib.sha256(paths[-1].read_bytes()).hexdigest() != expected:
            raise ValueError(f"{paths[-1]} is damaged; copy it again")
    decompressor = _zstandard(parts, out).ZstdDecompressor(max_window_size=2**27)
    with (
        decompressor.stream_reader(_Joined(paths)) as stream,
        tarfile.open(fileobj=stream, mode="r|") as tar,
    ):
        # Python 3.11.4 has filters; the tests also run on older ones
        tar.extraction_filter = getattr(tarfile, "data_filter", None)
        tar.extractall(out)


def _zstandard(parts: Path, out: Path) -> Any:
    """Import zstandard, which the machine may lack, from the wheel beside the parts."""
    if importlib.util.find_spec("zstandard") is None:
        for wheel in parts.glob("zstandard-*.whl"):
            zipfile.ZipFile(wheel).extractall(out / "zstandard")
            sys.path.insert(0, str(out / "zstandard"))
            break
        else:
            raise ValueError(f"{parts} has no wheel of zstandard; copy it again")
    return importlib.import_module("zstandard")


class _Joined(io.RawIOBase):
    """Files that are read as one."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.blocks = (path.read_bytes() for path in paths)

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        return next(self.blocks, b"")


def compile_modules(out: Path) -> None:
    """Compile all modules; otherwise, all processes of a first run compile the same ones."""
    folders = map(str, out.iterdir())
    # a few packages have templates that are not Python
    subprocess.run([sys.executable, "-m", "compileall", "-qq", "-j", "0", *folders], check=False)


def write_entry_points(folder: Path) -> None:
    """Write gem's metadata to a folder: its plugins are found by entry points."""
    folder.mkdir(parents=True, exist_ok=True)
    code = "from setuptools import setup; setup()"
    _run("-c", code, "-q", "egg_info", "--egg-base", str(folder))


def _run(*arguments: str) -> None:
    if subprocess.run([sys.executable, *arguments], cwd=ROOT).returncode:
        sys.exit(f"error: {' '.join(arguments)} failed")


def start_script(out: Path, name: str) -> Path:
    """Write the start script of a list."""
    paths = [str(out / path) for path in (*PATHS[name], "gem")]
    variables = {**VARIABLES, "TORCH_EXTENSIONS_DIR": str(out / "extensions")}
    variables["TORCHINDUCTOR_CACHE_DIR"] = str(out / "inductor")  # by default, below TMPDIR
    if name == "rl2":  # its server has the packages of base only, and shares the GPU with training
        variables["RL2_SERVER_PYTHONPATH"] = ":".join([str(out / "base"), f"{MOCKS}/rl2", *GEM])
        variables["VLLM_SERVER_ARGS"] = '{"gpu_memory_utilization": 0.15}'
    lines = [
        "#!/usr/bin/env bash",
        "set -e",
        f"export PYTHONPATH={shlex.quote(':'.join([*paths, *GEM]))}",
        # a variable that is set keeps its value
        *(f'[ -n "${{{k}+set}}" ] || export {k}={shlex.quote(v)}' for k, v in variables.items()),
        # NVIDIA's images set 9.0a, for which DeepSpeed does not compile its FusedAdam
        '[ "${TORCH_CUDA_ARCH_LIST-9.0a}" != 9.0a ] || export TORCH_CUDA_ARCH_LIST=9.0',
        # Ray's sockets need short paths, and two runs different ones
        "export TMPDIR=$(mktemp -d /tmp/gem.XXXX)",
        "export RAY_TMPDIR=$TMPDIR",
        f'exec {shlex.quote(sys.executable)} "$@"',
    ]
    path = out / "bin" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    path.chmod(0o755)
    return path


if __name__ == "__main__":
    main()
