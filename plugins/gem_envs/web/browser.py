"""A headless Chromium that all episodes of a process share, with one tab per episode.

Playwright drives it on a separate thread. The Chromium is `GEM_CHROMIUM`, or the first one on the
path, or Playwright's own. It resolves no host names and reaches only this machine.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import shutil
import threading
from collections.abc import Coroutine
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import cache
from importlib import import_module, resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gem_core.errors import EnvError, MissingDependencyError
from gem_envs.web.accessibility import read_tree
from gem_envs.web.page import Element, Outline

__all__ = ["Browser", "Tab", "find_chromium"]

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_ARGUMENTS = (
    "--disable-background-networking",
    "--disable-dev-shm-usage",  # /dev/shm is small in containers
    "--disable-gpu",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
_SECONDS = 120.0
"""The time limit of an action, including the load of the next page.

It is long, and exceeding it is an error: a slow machine must not change an episode.
"""


_READY = """() => new Promise((done) => {
    // Let the tasks that the last action queued run first.
    const ready = () => !window.gemLeaving && document.readyState === "complete";
    setTimeout(() => setTimeout(() => done(ready())));
})"""
_MARK = "function (number) { (this.closest ? this : this.parentElement).dataset.gem = number; }"
_UNMARK = """() => {
    document.querySelectorAll("[data-gem]").forEach((e) => e.removeAttribute("data-gem"));
    return { title: document.title, path: location.pathname + location.search };
}"""
_OBSTACLE = """(element, text) => {
    if (text !== null) {
        if (element.readOnly) return "cannot be changed";
        const probe = element.cloneNode();
        if (!["text", "textarea", "password", "email", "search", "tel", "url"].includes(probe.type)
            && "value" in probe && (probe.value = text) && probe.value !== text)
            return `is a field of the type ${probe.type}, which does not take this text`;
    }
    element.scrollIntoView({ block: "nearest", inline: "nearest" });
    const box = element.getClientRects()[0];
    if (!box) return "is not visible";
    const hit = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);
    const targets = [element, ...(element.labels || [])];
    return targets.some((target) => target.contains(hit)) ? "" : "is covered";
}"""


class Browser:
    """A Chromium and the thread that drives it; `Browser.shared()` is the one of this process."""

    def __init__(self) -> None:
        self.check()
        self._playwright: Any = import_module("playwright.async_api")
        self.error = self._playwright.Error
        self._program = find_chromium()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="gem-browser", daemon=True
        )
        self._thread.start()
        self._driver: Any = None
        self._chromium: Any = None
        self._start_lock: asyncio.Lock | None = None

    @staticmethod
    def check() -> None:
        """Raise `MissingDependencyError` if Chromium or Playwright is missing."""
        if find_spec("playwright") is None:
            raise MissingDependencyError("web navigation", "web", "playwright")
        find_chromium()

    @classmethod
    def shared(cls) -> Browser:
        """Return the browser of this process."""
        return _shared(os.getpid())

    def do(self, work: Coroutine[Any, Any, Any], seconds: float = _SECONDS) -> Any:
        """Run a coroutine on the browser's thread and wait for its result."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(seconds)
        except FutureTimeoutError as error:
            future.cancel()
            raise EnvError(f"the browser did not answer within {seconds:g} s") from error
        except self.error as error:
            raise EnvError(f"the browser failed: {error}") from error

    async def context(self) -> Any:
        """Return a new browser context: cookies, storage and tabs of one episode.

        The first call starts the browser; a later call restarts it if it died.
        """
        self._start_lock = self._start_lock or asyncio.Lock()
        async with self._start_lock:
            if self._driver is None:
                self._driver = await self._playwright.async_playwright().start()
            if self._chromium is None or not self._chromium.is_connected():
                launch = self._driver.chromium.launch
                self._chromium = await launch(
                    args=list(_ARGUMENTS), executable_path=self._program or None
                )
        context = await self._chromium.new_context(viewport={"width": 1280, "height": 800})
        context.set_default_timeout(_SECONDS * 1000)
        await context.add_init_script(_script("leaving.js"))
        return context

    def close(self) -> None:
        """End the browser and its thread."""

        async def end() -> None:
            if self._chromium is not None:
                await self._chromium.close()
            if self._driver is not None:
                await self._driver.stop()

        if self._thread.is_alive():
            with contextlib.suppress(Exception):  # at exit, the closed pipe ends the browser anyway
                self.do(end(), 10.0)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(5.0)
            if not self._loop.is_running():
                self._loop.close()


class Tab:
    """The page of an episode; every method blocks until the page is ready."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._context: Any = None
        self._page: Any = None
        self._tree_nodes: tuple[int, ...] = ()
        self.dialogs: list[str] = []
        """The messages of the dialogs since the last look; the tab answers every dialog with OK."""

    def open(self, url: str) -> None:
        """Open a URL in a new page without history and cookies."""
        self._browser.do(self._open(url))

    def goto(self, url: str) -> None:
        """Go to a URL."""
        self._browser.do(self._settle(self._page.goto(url)))

    def back(self) -> None:
        """Go back to the previous page, if there is one."""
        self._browser.do(self._settle(self._page.go_back()))

    def click(self, number: int) -> None:
        """Click on an element."""
        self._browser.do(self._settle(self._act(number, "click")))

    def fill(self, number: int, text: str) -> None:
        """Replace the text of a field."""
        self._browser.do(self._settle(self._act(number, "fill", text)))

    def select(self, number: int, option: int) -> None:
        """Select an option of a list by its index."""
        self._browser.do(self._settle(self._act(number, "select_option", index=option)))

    def obstacle(self, number: int, text: str | None) -> str:
        """Return why a person could not click on an element, or type a text; "" if they could.

        The browser would wait for the obstacle to go away.
        """
        reason: str = self._browser.do(self._act(number, "evaluate", _OBSTACLE, text))
        return reason

    def outline(self) -> Outline:
        """Return the page as text and renumber its elements."""
        self._tree_nodes = ()
        page = self._browser.do(self._evaluate(_script("outline.js")))
        elements = (
            Element(e["kind"], e["disabled"], tuple(e.get("options", ()))) for e in page["elements"]
        )
        return Outline(page["title"], page["path"], tuple(page["lines"]), tuple(elements))

    def accessibility_outline(self) -> Outline:
        """Return the accessibility tree of the page and renumber its elements."""
        outline: Outline = self._browser.do(self._read_tree())
        return outline

    def run(self, script: str) -> Any:
        """Run a script on the complete page and return its result, which must not be empty."""
        return self._browser.do(self._evaluate(script))

    def screenshot(self) -> bytes:
        """Return the visible part of the page as a PNG image."""
        image: bytes = self._browser.do(self._page.screenshot())
        return image

    def close(self) -> None:
        """Close the page and its context."""
        context, self._context, self._page = self._context, None, None
        if context is not None:
            with contextlib.suppress(Exception):  # the browser may have died
                self._browser.do(context.close())

    async def _act(self, number: int, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of an element's locator."""
        if self._tree_nodes:
            session = await self._context.new_cdp_session(self._page)
            node = {"backendNodeId": self._tree_nodes[number - 1]}
            resolved = await session.send("DOM.resolveNode", node)
            call = {"functionDeclaration": _MARK, "arguments": [{"value": number}]}
            call["objectId"] = resolved["object"]["objectId"]
            await session.send("Runtime.callFunctionOn", call)
            await session.detach()
        return await getattr(self._page.locator(f"[data-gem='{number}']"), method)(*args, **kwargs)

    async def _read_tree(self) -> Outline:
        page = await self._evaluate(_UNMARK)
        session = await self._context.new_cdp_session(self._page)
        nodes = (await session.send("Accessibility.getFullAXTree"))["nodes"]
        await session.detach()
        tree = read_tree(nodes, page["title"], page["path"])
        self._tree_nodes = tree.dom_nodes
        return tree.outline

    async def _open(self, url: str) -> None:
        if self._context is None or not self._context.browser.is_connected():
            self._context = await self._browser.context()
        if self._page is not None:
            with contextlib.suppress(Exception):  # it may have died with the browser
                await self._page.close()
        await self._context.clear_cookies()
        self.dialogs.clear()
        self._page = await self._context.new_page()
        self._page.on("dialog", self._accept)
        await self._settle(self._page.goto(url))

    async def _accept(self, dialog: Any) -> None:
        self.dialogs.append(dialog.message)
        await dialog.accept()

    async def _settle(self, work: Any) -> None:
        """Run an action and wait until the page that follows is complete."""
        await work
        await self._evaluate(_READY)

    async def _evaluate(self, script: str) -> Any:
        """Wait until the page is complete and stays, then return the result of a script."""
        while True:  # `do` limits the time
            with contextlib.suppress(self._browser.error):  # the page may go away meanwhile
                if await self._page.evaluate(_READY):
                    result = await self._page.evaluate(script)
                    if result:
                        return result
            if self._page.is_closed():
                raise EnvError("the browser or its page was closed")
            await asyncio.sleep(0.01)


def find_chromium() -> str:
    """Return the path of the Chromium to use; "" for Playwright's own."""
    program = os.environ.get("GEM_CHROMIUM", "")
    if program:
        if not shutil.which(program):
            raise MissingDependencyError(
                "web navigation", "web", f"the program GEM_CHROMIUM={program!r}"
            )
        return program
    for name in _NAMES:
        if path := shutil.which(name):
            return path
    cache_folder = Path(
        os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or Path.home() / ".cache" / "ms-playwright"
    )
    if any(cache_folder.glob("chromium*")):
        return ""
    raise MissingDependencyError(
        "web navigation",
        "web",
        "Chromium: run `apt-get install chromium` or `playwright install chromium`, "
        "or set GEM_CHROMIUM",
    )


@cache
def _shared(pid: int) -> Browser:
    browser = Browser()
    atexit.register(browser.close)
    return browser


@cache
def _script(name: str) -> str:
    return resources.files("gem_envs.web").joinpath(name).read_text(encoding="utf-8")
