"""Service tasks: programs that must keep running after the last command."""

from __future__ import annotations

import json
import random

from gem_envs.terminal.task import PEOPLE, WORDS, TerminalTask, lines_file, pick

__all__ = ["KINDS"]

_SERVER = """import http.server
import json
import sys

config = json.load(open(sys.argv[1]))


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        known = {{"/": config["greeting"], "/health": "ok"}}
        body = known.get(self.path, "").encode()
        self.send_response(200 if body else 404)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


http.server.HTTPServer(("127.0.0.1", {port}), Handler).serve_forever()
"""
_GOOD = _SERVER.format(port='config["port"]')
_WAIT = (
    "for i in $(seq 50); do (echo > /dev/tcp/127.0.0.1/{port}) 2>/dev/null && break; "
    "sleep 0.1; done"
)


def _ports(rng: random.Random, count: int) -> list[int]:
    return rng.sample(range(2000, 9999), count)


def _config(port: int, greeting: str) -> str:
    return json.dumps({"port": port, "greeting": greeting}) + "\n"


def _start(name: str, port: int) -> str:
    return f"nohup python3 server.py {name} > /dev/null 2>&1 &\n{_WAIT.format(port=port)}\n"


def _answers(port: int, greeting: str) -> str:
    """Return a command that runs the server with another configuration and prints its answers."""
    fetch = (
        "import urllib.error as e, urllib.request as u\n"
        "for path in ('/', '/health', '/other'):\n"
        f"    try: print(u.urlopen('http://127.0.0.1:{port}' + path, timeout=3).read().decode())\n"
        "    except e.HTTPError as error: print(error.code)\n"
    )
    return (
        f"cat > /tmp/other.json <<'EOF'\n{_config(port, greeting)}EOF\n"
        "python3 server.py /tmp/other.json > /dev/null 2>&1 &\n"
        f"{_WAIT.format(port=port)}\npython3 -I - <<'EOF'\n{fetch}EOF\n"
    )


def serve_folder(rng: random.Random) -> TerminalTask:
    """Start a web server that outlives the command."""
    (port,) = _ports(rng, 1)
    pages = {f"{word}.txt": f"{word} of {rng.choice(PEOPLE)}" for word in pick(rng, 3)}
    command = f"cd site && nohup python3 -m http.server {port} > /dev/null 2>&1 &"
    return TerminalTask(
        f"Serve the files of ~/site over HTTP on port {port} of 127.0.0.1, so that for example "
        f"http://127.0.0.1:{port}/{next(iter(pages))} returns that file. "
        "The server must still run when you submit.",
        tuple(lines_file(f"site/{name}", [text]) for name, text in pages.items()),
        tuple(("serves", f"{port}/{name}", text) for name, text in pages.items()),
        (command, _WAIT.format(port=port)),
    )


def stop_process(rng: random.Random) -> TerminalTask:
    """Stop one of several similar processes."""
    names, ports = pick(rng, 3), _ports(rng, 3)
    victim = rng.randrange(3)
    configs = [
        (f"{name}.json", _config(port, f"I am {name}"), 0o644)
        for name, port in zip(names, ports, strict=True)
    ]
    return TerminalTask(
        f"Three services run here: {', '.join(names)}. Stop the service {names[victim]}; "
        "the other two must keep running.",
        (("server.py", _GOOD, 0o644), *configs),
        tuple(
            ("serves", f"{port}/", None if n == victim else f"I am {name}")
            for n, (name, port) in enumerate(zip(names, ports, strict=True))
        ),
        (f"pgrep -af server.py; pkill -f 'server.py {names[victim]}.json'; sleep 0.3",),
        "".join(_start(f"{name}.json", port) for name, port in zip(names, ports, strict=True)),
    )


def restart_service(rng: random.Random) -> TerminalTask:
    """Change the configuration of a service and restart it."""
    port, new_port = _ports(rng, 2)
    old, new = pick(rng, 2)
    config = _config(new_port, f"Hello {new}")
    return TerminalTask(
        "The service ~/server.py runs here with the configuration ~/service.json, which it reads "
        f"once, at its start. It should answer at port {new_port} instead of {port}, with the "
        f"greeting 'Hello {new}'. Change the configuration and restart the service, as "
        "`python3 server.py service.json`. Nothing may answer at the old port, and the service "
        "must still run when you submit.",
        (
            ("server.py", _GOOD, 0o644),
            ("service.json", _config(port, f"Hello {old}"), 0o644),
        ),
        (
            ("serves", f"{new_port}/", f"Hello {new}"),
            ("serves", f"{new_port}/health", "ok"),
            ("serves", f"{port}/", None),
            ("json", "service.json", config),
            ("bytes", "server.py", _GOOD),
        ),
        (
            "ps aux; cat service.json",
            f"echo '{config.strip()}' > service.json; pkill -f server.py",
            _start("service.json", new_port),
        ),
        _start("service.json", port),
    )


def port_conflict(rng: random.Random) -> TerminalTask:
    """Free a port that an old process holds, and start the new one."""
    port, other_port = _ports(rng, 2)
    word, other = pick(rng, 2)
    return TerminalTask(
        f"~/app/server.py should serve at port {port} with the configuration ~/app/app.json, but "
        "an older process still uses this port. Find and stop that process, and start the new "
        "one as `python3 server.py app.json` in ~/app. All other services must keep running, and "
        "the new one must still run when you submit.",
        (
            ("app/server.py", _GOOD, 0o644),
            ("app/app.json", _config(port, f"new {word}"), 0o644),
            ("attic/server.py", _GOOD, 0o644),
            (f"attic/{word}.json", _config(port, f"old {word}"), 0o644),
            (f"attic/{other}.json", _config(other_port, f"old {other}"), 0o644),
        ),
        (
            ("serves", f"{port}/", f"new {word}"),
            ("serves", f"{port}/health", "ok"),
            ("serves", f"{other_port}/", f"old {other}"),
            ("bytes", "app/server.py", _GOOD),
        ),
        (
            "cat app/app.json; ps aux",
            f"grep -l {port} attic/*.json; pkill -f 'server.py {word}.json'; sleep 0.3",
            "cd app; " + _start("app.json", port),
        ),
        f"cd attic\n{_start(f'{word}.json', port)}{_start(f'{other}.json', other_port)}",
    )


def fix_service(rng: random.Random) -> TerminalTask:
    """Repair a program and its configuration, and start it."""
    port, wrong_port, other_port = _ports(rng, 3)
    word = rng.choice(WORDS)
    broken = _SERVER.format(port=wrong_port).replace('config["greeting"]', 'config["welcome"]')
    broken = broken.replace("        self.end_headers()\n", "")
    config = f'{{"port": {port}, "greeting": "Welcome to {word}"\n'
    repaired = _config(port, f"Welcome to {word}")
    return TerminalTask(
        "The service ~/server.py does not work. It should read the configuration "
        f"~/service.json, listen at the configured port, {port}, answer / with the configured "
        f"greeting, 'Welcome to {word}', /health with ok, and everything else with the status "
        "404. Repair the program and its configuration, keep the keys port and greeting, and "
        "start it as `python3 server.py service.json`. It must still run when you submit.",
        (("server.py", broken, 0o644), ("service.json", config, 0o644)),
        (
            ("serves", f"{port}/", f"Welcome to {word}"),
            ("serves", f"{port}/health", "ok"),
            ("serves", f"{wrong_port}/", None),
            ("json", "service.json", repaired),
            ("prints", _answers(other_port, "Hello"), "Hello\nok\n404"),
        ),
        (
            "python3 server.py service.json; cat server.py service.json",
            f"echo '{repaired.strip()}' > service.json; "
            f'sed -i \'s/welcome/greeting/; s/"127.0.0.1", {wrong_port}/"127.0.0.1", '
            'config["port"]/; /send_response/a \\        self.end_headers()\' server.py',
            _start("service.json", port),
        ),
    )


KINDS = {
    "ServeFolder": serve_folder,
    "StopProcess": stop_process,
    "RestartService": restart_service,
    "PortConflict": port_conflict,
    "FixService": fix_service,
}
