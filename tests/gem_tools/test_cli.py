"""Tests of `gem-rl tools` and `gem-rl play --tools`."""

from __future__ import annotations

import json
import subprocess
import sys


def gem_rl(*args: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    env = {"PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin"}
    return subprocess.run(
        [sys.executable, "-m", "gem_core", *args],
        input=typed,
        capture_output=True,
        text=True,
        env=env,
        timeout=120,
    )


def test_tools_command_lists_tools_with_their_status() -> None:
    tools = {tool["name"]: tool for tool in json.loads(gem_rl("tools", "--json").stdout)}
    assert set(tools) >= {"python", "search", "retrieval", "mcp"}
    assert tools["search"]["status"] == "ready"
    assert "isolation" in tools["python"]["status"]
    table = gem_rl("tools").stdout
    assert table.splitlines()[0].split() == ["NAME", "EXTRA", "STATUS", "SUMMARY"]
    assert "runs Python in a sandbox" in table


def test_play_command_accepts_tools() -> None:
    done = gem_rl(
        "play",
        "game:GuessTheNumber-v0-easy",
        "--seed",
        "1",
        "--tools",
        "python(max_uses=1)",
        typed="<python>print(6 * 7)</python>\n3\n",
    )
    assert done.returncode == 0, done.stderr
    assert "42\nThat was the last of 1 tool calls." in done.stdout
    assert "(sent as \\boxed{3})" in done.stdout


def test_play_command_rejects_unknown_tools() -> None:
    done = gem_rl("play", "game:GuessTheNumber-v0-easy", "--tools", "pyton")
    assert done.returncode == 2
    assert "did you mean 'python'" in done.stderr
    assert gem_rl("play", "game:GuessTheNumber-v0-easy", "--tools", "react").returncode == 2
