"""Packing of packages for a GPU machine without network, without downloads."""

from __future__ import annotations

import subprocess
import sys

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


def test_parts_become_the_packed_folders_and_start_scripts(tmp_path):
    site, parts, out = tmp_path / "site", tmp_path / "parts", tmp_path / "out"
    module = "import gem_core\nDATA = " + repr([i * i % 977 for i in range(20_000)])
    for name in ("studies", "smollm2"):
        (site / name).mkdir(parents=True)
        (site / name / f"in_{name}.py").write_text(module)
    parts.mkdir()
    assert pack.archive(site, ["studies", "smollm2"], parts, size=500) > 2
    assert {path.stat().st_size for path in sorted(parts.iterdir())[:-1]} == {500}

    unpack.extract(parts, out)
    assert (out / "smollm2" / "in_smollm2.py").read_text() == module
    (script,) = unpack.start_scripts(out)
    code = "import in_studies, in_smollm2, gem_trl, os; print(os.environ['HF_HUB_OFFLINE'])"
    done = subprocess.run([script, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert (done.stdout, done.returncode) == ("1\n", 0), done.stderr


def test_wrong_input_is_rejected(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").touch()
    for program, arguments, message in (
        (pack, [tmp_path / "new", "trl", "vrel"], "unknown lists: vrel; there are base, openrlhf"),
        (pack, [tmp_path], "is not empty"),
        (unpack, [tmp_path, tmp_path / "out"], "has no parts"),
    ):
        monkeypatch.setattr(sys, "argv", ["program", *map(str, arguments)])
        with pytest.raises(SystemExit):
            program.main()
        assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


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
