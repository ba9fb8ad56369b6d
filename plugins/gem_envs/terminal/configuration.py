"""Configuration tasks: settings and broken configuration files."""

from __future__ import annotations

import json
import random
import shlex

from gem_envs.terminal.task import PEOPLE, WORDS, TerminalTask, lines_file, pick, text_of

__all__ = ["KINDS"]


def edit_config(rng: random.Random) -> TerminalTask:
    """Change one setting in one section; other sections have the same setting."""
    sections = rng.sample(WORDS, 4)
    chosen, key = rng.choice(sections), rng.choice(("port", "workers", "timeout"))
    value = rng.randint(10_000, 60_000)  # larger than every existing value
    before: list[str] = []
    after: list[str] = []
    for section in sections:
        settings = {
            "port": rng.randint(1000, 9999),
            "workers": rng.randint(1, 64),
            "timeout": rng.randint(5, 300),
        }
        for lines, edited in ((before, False), (after, True)):
            lines += [f"[{section}]", f"# of the {section} server"]
            lines += [
                f"{k} = {value if edited and section == chosen and k == key else v}"
                for k, v in settings.items()
            ]
            lines.append("")
    return TerminalTask(
        f"In ~/app.ini, set {key} in the section [{chosen}] to {value}. "
        "Change nothing else in the file, not even a comment.",
        (lines_file("app.ini", before),),
        (("bytes", "app.ini", text_of(after)),),
        (f"sed -i '/^\\[{chosen}\\]/,/^\\[/ s/^{key} = .*/{key} = {value}/' app.ini",),
    )


def fix_json(rng: random.Random) -> TerminalTask:
    """Repair the syntax of a JSON file without changing its values."""
    value = {
        word: {"port": rng.randint(1000, 9999), "hosts": rng.sample(PEOPLE, 2), "tls": True}
        for word in pick(rng, 4)
    }
    text = json.dumps(value, indent=2)
    mistakes = [
        ("true\n  },", "true,\n  },"),
        ('"tls": true', '"tls": True'),
        ("],", "]"),
        ('"hosts"', "hosts"),
    ]
    broken = text
    for right, wrong in rng.sample(mistakes, 3):
        broken = broken.replace(right, wrong, 1)
    program = (
        "import json; value = " + json.dumps(value).replace("true", "True") + "; "
        "json.dump(value, open('services.json', 'w'), indent=2)"
    )
    return TerminalTask(
        "~/services.json is not valid JSON any more: someone edited it by hand and made a few "
        "mistakes of syntax. Repair it without changing, adding or removing a value. "
        "`python3 -m json.tool services.json` must accept it.",
        (("services.json", broken, 0o644),),
        (("json", "services.json", json.dumps(value)),),
        (
            "python3 -m json.tool services.json",
            "cat services.json",
            f"python3 -c {shlex.quote(program)}",
        ),
    )


def merge_env(rng: random.Random) -> TerminalTask:
    """Add the missing settings of one file to another."""
    keys = [f"{word.upper()}_{rng.choice(('URL', 'PORT', 'KEY'))}" for word in pick(rng, 9)]
    example = {key: f"default-{rng.randint(100, 999)}" for key in keys}
    own = {key: f"own-{rng.randint(100, 999)}" for key in rng.sample(keys, 4)}
    own["LOCAL_ONLY"] = str(rng.randint(100, 999))
    merged = [f"{k}={v}" for k, v in own.items()]
    merged += [f"{k}={v}" for k, v in example.items() if k not in own]
    return TerminalTask(
        "~/.env and ~/.env.example have lines KEY=VALUE. Append every setting of ~/.env.example "
        "whose key is not in ~/.env to ~/.env, in the order of ~/.env.example. "
        "Keep the lines that ~/.env has, and do not change ~/.env.example.",
        (
            lines_file(".env", [f"{k}={v}" for k, v in own.items()]),
            lines_file(".env.example", [f"{k}={v}" for k, v in example.items()]),
        ),
        (
            ("text", ".env", "\n".join(merged)),
            ("text", ".env.example", "\n".join(f"{k}={v}" for k, v in example.items())),
        ),
        (
            "cat .env .env.example",
            'while read -r l; do grep -q "^${l%%=*}=" .env || echo "$l" >> .env; done '
            "< .env.example",
        ),
    )


KINDS = {
    "EditConfig": edit_config,
    "FixJson": fix_json,
    "MergeEnv": merge_env,
}
