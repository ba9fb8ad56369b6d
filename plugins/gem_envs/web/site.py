"""Small web applications with a plain-data state, and the loopback server that serves them.

A site draws its content from a random generator, renders pages, and changes its state when a form
is posted. A task is solved when the state equals the task's goal state, with no other change.
"""

from __future__ import annotations

import copy
import random
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import parse_qsl, unquote, urlsplit

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
    "options",
    "table",
]

_LARGEST_FORM = 1 << 20


@dataclass(frozen=True, slots=True)
class Request:
    """A browser's request."""

    path: tuple[str, ...]
    """The unquoted parts between the slashes."""
    query: Mapping[str, str] = field(default_factory=dict)
    posted: Mapping[str, str] | None = None
    """The fields of a posted form; None for a GET request."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page; `status` is 404 if it does not exist."""

    title: str
    body: str
    status: int = 200


@dataclass(frozen=True, slots=True)
class Redirect:
    """The path to go to after a form was accepted."""

    path: str


Answer = Page | Redirect


@dataclass(frozen=True, slots=True)
class WebTask:
    """A task on a site."""

    kind: str
    instruction: str
    goal: Any
    """The state that solves the task."""
    answer: str | None = None
    """The answer that `stop` must give; None if the task is not a question."""
    plan: tuple[tuple[str, ...], ...] = ()
    """The expert's steps: (verb, element, argument, text on the element's line).

    An element is named by its outline without the number.
    """


class Site:
    """Base class of the sites; subclasses set `state`, render pages and draw tasks."""

    title: ClassVar[str]
    menu: ClassVar[Sequence[tuple[str, str]]]
    """(path, text) of the links on every page."""
    kinds: ClassVar[Sequence[str]]
    """The kinds of tasks; the method `task_KIND()` draws one."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.state: Any = {}

    def answer(self, request: Request) -> Answer:
        """Answer a request; only this method changes the state."""
        raise NotImplementedError

    def draw(self, kind: str | None) -> WebTask:
        """Draw a task of a kind; None draws the kind as well."""
        make: Callable[[], WebTask] = getattr(self, f"task_{kind or self.rng.choice(self.kinds)}")
        return make()

    def write(self, text: str, said: str) -> WebTask:
        """Return the task to write a text somewhere on the site; `said` describes the text."""
        raise NotImplementedError

    def changed(self, change: Callable[[Any], None]) -> Any:
        """Return a copy of the state with a change applied."""
        state = copy.deepcopy(self.state)
        change(state)
        return state

    def missing(self) -> Page:
        """Return the page for an unknown path."""
        return Page("Not found", "<p>There is no such page.</p>", 404)

    def render(self, page: Page) -> str:
        """Return the HTML document of a page."""
        menu = " ".join(link(path, text) for path, text in self.menu)
        return (
            "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
            f"<title>{escape(page.title)} - {self.title}</title></head>"
            f"<body><nav>{menu}</nav><h1>{escape(page.title)}</h1>{page.body}</body></html>"
        )


class Loopback:
    """A server on a free loopback port that serves one site at a time."""

    def __init__(self) -> None:
        self.site: Site | None = None
        self._lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"loopback": self})
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(
            target=self._http.serve_forever, name="gem-site", daemon=True
        )
        self._thread.start()

    def take(self, request: Request) -> tuple[int, str, str]:
        """Return (status, redirect path, document) for a request."""
        with self._lock:  # requests change the state
            site = self.site
            if site is None:
                return 404, "", ""
            answer = site.answer(request)
            if isinstance(answer, Redirect):
                return 303, answer.path, ""
            return answer.status, "", site.render(answer)

    def close(self) -> None:
        """Stop the server."""
        self._http.shutdown()
        self._http.server_close()
        self._thread.join(5.0)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # it delays the second packet of a reply by 40 ms
    timeout = 60.0
    loopback: Loopback

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

    def _answer(self, posted: Mapping[str, str] | None) -> None:
        url = urlsplit(self.path)
        path = tuple(unquote(part) for part in url.path.split("/") if part)
        self._send(*self.loopback.take(Request(path, dict(parse_qsl(url.query)), posted)))

    def _send(self, status: int, location: str, document: str) -> None:
        data = document.encode()
        self.send_response(status)
        if location:
            self.send_header("Location", location)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Cache-Control", "no-store")  # "back" shows the current state
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Write no log."""


def link(path: str, text: object) -> str:
    """Return the HTML of a link."""
    return f"<a href='{escape(path, quote=True)}'>{escape(str(text))}</a>"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return the HTML of a table; the cells are HTML."""
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def options(values: Iterable[str], chosen: str = "") -> str:
    """Return the HTML of the options of a list, with one of them chosen."""
    return "".join(
        f"<option{' selected' * (value == chosen)}>{escape(value)}</option>" for value in values
    )


def form(path: str, button: str, *fields: str, method: str = "post", ask: str = "") -> str:
    """Return the HTML of a form; the fields are HTML.

    With `ask`, the browser shows this question before it sends the form.
    """
    check = f' onsubmit="return confirm({escape(repr(ask), quote=True)})"' if ask else ""
    inner = "".join(fields)
    return (
        f"<form action='{escape(path, quote=True)}' method='{method}'{check}>"
        f"{inner}<button>{escape(button)}</button></form>"
    )
