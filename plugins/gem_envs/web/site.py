"""Site: a small web application with a plain-data state, and the loopback server that shows it to a browser.

A site draws its content from a generator, renders pages, and changes its state on the forms that are sent. A task says what the
state should become: it is solved when the state is that, and nothing else has changed.
"""

from __future__ import annotations

import copy
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import parse_qsl, urlsplit

__all__ = [
    "Answer",
    "Loopback",
    "Page",
    "Redirect",
    "Request",
    "Site",
    "WebTask",
    "form",
    "link",
    "table",
]

_LARGEST_FORM = 1 << 20


@dataclass(frozen=True, slots=True)
class Request:
    """What a browser asked for."""

    path: tuple[str, ...]
    """The parts between the slashes."""
    query: Mapping[str, str] = field(default_factory=dict)
    sent: Mapping[str, str] | None = None
    """The fields of a form that was posted."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page; `status` 404 where there is none."""

    title: str
    body: str
    status: int = 200


@dataclass(frozen=True, slots=True)
class Redirect:
    """Where to go after a form was taken."""

    path: str


Answer = Page | Redirect


@dataclass(frozen=True, slots=True)
class WebTask:
    """What to do on a site."""

    kind: str
    instruction: str
    goal: Any
    """The state in which the task is solved."""
    answer: str | None = None
    """What `stop` has to say, where the task is a question."""
    plan: tuple[tuple[str, ...], ...] = ()
    """How an expert does it: (verb, element, argument, text of its line), elements by their outline without the number."""


class Site:
    """The base: subclasses fill `state`, render pages and draw tasks."""

    title: ClassVar[str]
    menu: ClassVar[Sequence[tuple[str, str]]]
    """(path, text) of the links on every page."""
    kinds: ClassVar[Sequence[str]]
    """The kinds of tasks, each a method `task_KIND()`."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.state: Any = {}

    def answer(self, request: Request) -> Answer:
        """A page, or where to go next; the state changes here only."""
        raise NotImplementedError

    def draw(self, kind: str | None) -> WebTask:
        """A task of a kind, or of any."""
        make: Callable[[], WebTask] = getattr(self, f"task_{kind or self.rng.choice(self.kinds)}")
        return make()

    def changed(self, change: Callable[[Any], None]) -> Any:
        """The state as it would be after a change."""
        state = copy.deepcopy(self.state)
        change(state)
        return state

    def missing(self) -> Page:
        """There is no such page."""
        return Page("Not found", "<p>There is no such page.</p>", 404)

    def render(self, page: Page) -> str:
        """A whole document."""
        menu = " ".join(link(path, text) for path, text in self.menu)
        return (
            "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
            f"<title>{escape(page.title)} - {self.title}</title></head>"
            f"<body><nav>{menu}</nav><h1>{escape(page.title)}</h1>{page.body}</body></html>"
        )


class Loopback:
    """Serves one site at a time to the browser of this machine, on a free port."""

    def __init__(self) -> None:
        self.site: Site | None = None
        self._lock = threading.Lock()
        self._http = ThreadingHTTPServer(
            ("127.0.0.1", 0), type("Handler", (_Handler,), {"home": self})
        )
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(
            target=self._http.serve_forever, name="gem-site", daemon=True
        )
        self._thread.start()

    def take(self, request: Request) -> tuple[int, str, str]:
        """(status, where to go, document) for a request; one at a time, as they change the state."""
        with self._lock:
            site = self.site
            if site is None:
                return 404, "", ""
            answer = site.answer(request)
            if isinstance(answer, Redirect):
                return 303, answer.path, ""
            return answer.status, "", site.render(answer)

    def close(self) -> None:
        """Stops serving."""
        self._http.shutdown()
        self._http.server_close()
        self._thread.join(5.0)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 60.0
    home: Loopback

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        if size > _LARGEST_FORM:
            self.close_connection = True
            self._send(413, "", "")
            return
        text = self.rfile.read(size).decode("utf-8", "replace")
        self._answer(
            {k: v.replace("\r\n", "\n") for k, v in parse_qsl(text, keep_blank_values=True)}
        )

    def _answer(self, sent: Mapping[str, str] | None) -> None:
        url = urlsplit(self.path)
        path = tuple(part for part in url.path.split("/") if part)
        self._send(*self.home.take(Request(path, dict(parse_qsl(url.query)), sent)))

    def _send(self, status: int, place: str, document: str) -> None:
        data = document.encode()
        self.send_response(status)
        if place:
            self.send_header("Location", place)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Cache-Control", "no-store")  # going back shows what is there now
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Nobody reads it."""


def link(path: str, text: object) -> str:
    """A link."""
    return f"<a href='{escape(path, quote=True)}'>{escape(str(text))}</a>"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of cells that are HTML already."""
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def form(path: str, button: str, *fields: str, method: str = "post", ask: str = "") -> str:
    """A form of fields that are HTML already; with `ask`, the browser asks before it is sent."""
    check = f' onsubmit="return confirm({escape(repr(ask), quote=True)})"' if ask else ""
    inner = "".join(fields)
    return f"<form action='{escape(path, quote=True)}' method='{method}'{check}>{inner}<button>{escape(button)}</button></form>"
