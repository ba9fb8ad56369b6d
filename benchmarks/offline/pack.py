"""Pack the packages of docs/gpu.md for a GPU machine that reaches no package index.

    python benchmarks/offline/pack.py packed                # all lists beside this program
    python benchmarks/offline/pack.py packed studies smollm2  # some of them
    python benchmarks/offline/unpack.py packed gpu          # there, in a copy of the repository

Installs each list for Linux on x86-64 and Python 3.12 into a folder of its own, and writes these
folders as one compressed archive in parts. Needs pip, setuptools, wheel and zstandard; OpenRLHF's
list also needs torch, because DeepSpeed has no wheel.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
PURE = {
    "antlr4-python3-runtime",
    "cellpylib",
    "deepspeed",
    "transformers-stream-generator",
    "zss",
}
"""Packages without wheels that are pure Python: a wheel is built here."""
COMPILED = {"pycosat"}
"""Packages without wheels that have C code: unpack.py compiles it."""
UNUSED = (
    "ray/jars",
    "vllm/vllm-rs",
    "wandb/bin/wandb-core",
    "xgrammar/lib",
    "__pycache__",
)
"""Large files that the benchmarks do not use."""
PART_BYTES = 50 * 2**20
ZSTANDARD = "zstandard==0.25.0"  # for unpack.py
PLATFORMS = [
    *(f"manylinux_2_{minor}_x86_64" for minor in range(39, 4, -1)),
    *("manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64"),
]


def main() -> None:
    names = sorted(path.stem for path in HERE.glob("*.txt"))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="folder of the parts")
    parser.add_argument("lists", nargs="*", metavar="LIST", help=f"of {', '.join(names)}")
    args = parser.parse_args()
    unknown = sorted(set(args.lists) - set(names))
    if unknown:
        parser.error(f"unknown lists: {', '.join(unknown)}; there are {', '.join(names)}")
    if args.out.exists() and (not args.out.is_dir() or any(args.out.iterdir())):
        parser.error(f"{args.out} is not an empty folder; remove it, or choose another one")
    chosen = args.lists or names
    args.out.mkdir(parents=True, exist_ok=True)
    work = args.out / "work"
    for name in chosen:
        print(f"installing {name}", flush=True)
        install(name, work)
    print("compressing", flush=True)
    parts = archive(work / "site", chosen, args.out)
    _pip("download", "--no-deps", ZSTANDARD, *_target(), "--dest", str(args.out))
    shutil.rmtree(work)
    print(f"{parts} parts in {args.out}")


def install(name: str, work: Path) -> None:
    """Install a list into work/site/NAME."""
    lines = (HERE / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    requirements = [line for line in lines if line and not line.startswith("#")]
    pure, compiled = (
        [r for r in requirements if r.split("==")[0] in names] for names in (PURE, COMPILED)
    )
    wheels, site = work / "wheels" / name, work / "site" / name
    if pure:
        # DeepSpeed compiles its kernels where they run
        environment = {**os.environ, "DS_BUILD_OPS": "0", "DS_ACCELERATOR": "cpu"}
        flags = ("--no-deps", "--no-build-isolation", "--wheel-dir", str(wheels))
        _pip("wheel", *flags, *pure, env=environment)
    others = [r for r in requirements if r not in (*pure, *compiled)]
    flags = ("--no-deps", "--no-compile", "--target", str(site))
    _pip("install", *flags, *_target(), *others, *map(str, wheels.glob("*.whl")))
    if compiled:
        flags = ("--no-deps", "--no-build-isolation", "--no-binary=:all:")
        _pip("download", *flags, "--dest", str(site / "sources"), *compiled)
    for pattern in UNUSED:
        for path in list(site.rglob(pattern)):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def archive(site: Path, names: Sequence[str], out: Path, size: int = PART_BYTES) -> int:
    """Write folders of `site` to `out` as a compressed archive in parts; return their number.

    SHA256SUMS names the parts, with their hashes.
    """
    import zstandard

    parameters = zstandard.ZstdCompressionParameters.from_level(
        9, window_log=27, enable_ldm=True, threads=-1
    )
    parts = _Parts(out, size)
    compressor = zstandard.ZstdCompressor(compression_params=parameters)
    with compressor.stream_writer(parts, closefd=False) as stream:
        with tarfile.open(fileobj=stream, mode="w|") as tar:
            for name in names:
                tar.add(site / name, name)
    return parts.close()


class _Parts:
    """A binary file that is written as part-000, part-001 and so on."""

    def __init__(self, folder: Path, size: int) -> None:
        self.folder, self.size, self.data = folder, size, bytearray()
        self.sums: list[str] = []

    def write(self, data: bytes) -> int:
        self.data += data
        while len(self.data) >= self.size:
            self._write_part()
        return len(data)

    def flush(self) -> None:
        pass

    def close(self) -> int:
        if self.data:
            self._write_part()
        (self.folder / "SHA256SUMS").write_text("".join(self.sums), encoding="utf-8")
        return len(self.sums)

    def _write_part(self) -> None:
        name, part = f"part-{len(self.sums):03d}", bytes(self.data[: self.size])
        (self.folder / name).write_bytes(part)
        self.sums.append(f"{hashlib.sha256(part).hexdigest()}  {name}\n")
        del self.data[: self.size]


def _target() -> list[str]:
    """Return pip's flags for the packages of the GPU machine."""
    flags = ["--only-binary=:all:", "--python-version", "3.12", "--implementation", "cp"]
    flags += ["--ignore-requires-python"]  # pip 23 compares with the Python that runs it
    for abi in ("cp312", "abi3", "none"):
        flags += ["--abi", abi]
    for platform in PLATFORMS:
        flags += ["--platform", platform]
    return flags


def _pip(*arguments: str, env: dict[str, str] | None = None) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", *arguments]
    if subprocess.run(command, env=env).returncode:
        sys.exit(f"error: pip {arguments[0]} failed")


if __name__ == "__main__":
    main()
