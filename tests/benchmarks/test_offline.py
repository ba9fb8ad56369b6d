"""Packing of packages for a GPU machine without network, without downloads."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import random
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from project import ROOT

sys.path.append(str(ROOT / "benchmarks" / "offline"))

import pack
import share_vllm
import unpack

LISTS = sorted((ROOT / "benchmarks" / "offline").glob("*.txt"))


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_lists_pin_every_package_once(path):
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    names = [line.split("==")[0] for line in lines]
    assert all(line.count("==") == 1 and " " not in line for line in lines)
    assert names == sorted(set(names))


@pytest.fixture
def parts(tmp_path):
    """An archive of more than 100 parts, with two lists."""
    site, parts = tmp_path / "site", tmp_path / "parts"
    for name in ("studies", "smollm2"):
        (site / name).mkdir(parents=True)
        numbers = random.Random(name).choices(range(1000), k=6000)
        (site / name / f"in_{name}.py").write_text(f"DATA = {numbers}")
    parts.mkdir()
    assert pack.archive(site, ["studies", "smollm2"], parts, size=150) > 100
    return parts


def call(program, *arguments, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["program", *map(str, arguments)])
    monkeypatch.setattr(unpack, "check_python", lambda: None)
    program.main()


def test_parts_become_folders_and_start_scripts(parts, tmp_path, monkeypatch, capfd):
    out = tmp_path / "out"
    call(unpack, parts, out, monkeypatch=monkeypatch)
    assert capfd.readouterr().out == f"{out}/bin/studies\n"
    code = (
        "import in_studies, in_smollm2, gem_core, os; "
        "names = ('HF_HUB_OFFLINE', 'WANDB_MODE', 'TORCH_CUDA_ARCH_LIST'); "
        "print(gem_core.__file__, *(os.environ[name] for name in names))"
    )
    for arch, expected in (("9.0a", "9.0"), ("8.0", "8.0")):
        variables = {"WANDB_MODE": "offline", "TORCH_CUDA_ARCH_LIST": arch}
        done = subprocess.run(
            [out / "bin" / "studies", "-c", code],
            env={**os.environ, **variables},
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        package = str(ROOT / "gem_core" / "__init__.py")
        assert done.stdout.split() == [package, "1", "offline", expected]
    assert list((out / "studies" / "__pycache__").glob("in_studies.*.pyc"))


def test_entry_points_of_gem_are_written(tmp_path):
    unpack.write_entry_points(tmp_path / "gem")
    (found,) = importlib.metadata.distributions(path=[str(tmp_path / "gem")])
    groups = {entry.group for entry in found.entry_points}
    assert "verl.plugins" in groups, groups


def test_scripts_of_incomplete_lists_are_not_written(tmp_path, monkeypatch, capfd):
    (tmp_path / "site" / "trl").mkdir(parents=True)
    (tmp_path / "parts").mkdir()
    pack.archive(tmp_path / "site", ["trl"], tmp_path / "parts")
    call(unpack, tmp_path / "parts", tmp_path / "out", monkeypatch=monkeypatch)
    assert capfd.readouterr().out == "trl has no start script: pack base, smollm2, too\n"


def test_zstandard_comes_from_its_wheel_if_the_machine_lacks_it(parts, tmp_path, monkeypatch):
    installed = Path(importlib.util.find_spec("zstandard").origin).parent
    wheel = parts / "zstandard-1-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path in installed.glob("*.*"):
            archive.write(path, f"zstandard/{path.name}")
    monkeypatch.setattr(unpack.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in [name for name in sys.modules if name.startswith("zstandard")]:
        monkeypatch.delitem(sys.modules, name)
    unpack.extract(parts, tmp_path / "out")
    assert sys.modules["zstandard"].__file__.startswith(str(tmp_path / "out" / "zstandard"))
    assert (tmp_path / "out" / "smollm2" / "in_smollm2.py").exists()
    wheel.unlink()
    with pytest.raises(ValueError, match="no wheel of zstandard"):
        unpack.extract(parts, tmp_path / "other")


def test_wrong_input_is_rejected(parts, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"

    def message(program, *arguments):
        with pytest.raises(SystemExit):
            call(program, *arguments, monkeypatch=monkeypatch)
        assert not out.exists()
        return capsys.readouterr().err

    unknown = message(pack, out, "trl", "vrel")
    assert "unknown lists: vrel; there are base, openrlhf" in unknown
    assert "is not an empty folder" in message(pack, parts)
    assert "is not an empty folder" in message(unpack, parts, parts)
    assert "has no parts; give the folder that pack.py wrote" in message(unpack, tmp_path, out)
    (parts / "part-007").write_bytes(b"damaged")
    assert "part-007 is damaged; copy it again" in message(unpack, parts, out)
    (parts / "part-005").unlink()
    assert "part-005 is missing; copy it again" in message(unpack, parts, out)


def test_another_python_is_rejected(monkeypatch):
    monkeypatch.setattr(unpack.sys, "version_info", (3, 11, 0))
    with pytest.raises(ValueError, match=r"for Python 3\.12 on x86_64; this is Python 3\.11 on"):
        unpack.check_python()


def test_vllm_is_changed_once_and_only_the_known_version(tmp_path):
    folder = tmp_path / "vllm" / "v1" / "worker"
    folder.mkdir(parents=True)
    for name, lines in share_vllm.CHANGES.items():
        (folder / name).write_text("\n".join(before for before, _ in lines))
    share_vllm.change(tmp_path)
    changed = {path.name: path.read_text() for path in folder.iterdir()}
    assert all(text.count("SHARED_KV") == len(share_vllm.CHANGES[n]) for n, text in changed.items())
    share_vllm.change(tmp_path)
    assert changed == {path.name: path.read_text() for path in folder.iterdir()}
    (folder / "utils.py").write_text("")
    with pytest.raises(SystemExit, match=r"expected vLLM 0\.24"):
        share_vllm.change(tmp_path)
    with pytest.raises(SystemExit, match="is missing; give the folder that has vLLM"):
        share_vllm.change(folder)
