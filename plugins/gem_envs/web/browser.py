"""Browser: one headless Chromium for all episodes of a process, driven by Playwright on a thread of its own; a tab for each.

The Chromium is the machine's own (`GEM_CHROMIUM`, or the first of the usual names on the path), else the one that Playwright
installed. It resolves no name and reaches nothing but this machine.
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
from dataclasses import dataclass
from functools import cache
from importlib import import_module, resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gem_core.errors import EnvError, MissingDependencyError

__all__ = ["Browser", "Element", "Outline", "Tab", "find_chromium"]

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_ARGUMENTS = (
    "--disable-background-networking",
    "--disable-dev-shm-usage",  # /dev/shm is small in containers
    "--disable-gpu",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
_SECONDS = 120.0
"""For one action, the page that follows included. Long, and an error: what a slow machine does must not change an episode."""


_READY = """() => new Promise((done) => {
    // Behind what is still to be done for the last action.
    setTimeout(() => setTimeout(() => done(!window.gemLeaving && document.readyState === "complete")));
})"""


@dataclass(frozen=True, slots=True)
class Element:
    """Something on a page that can be acted on."""

    kind: str
    """`link`, `button`, `textbox`, `combobox`, `checkbox` or `radio`."""
    disabled: bool
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Outline:
    """A page as text."""

    title: str
    path: str
    lines: tuple[str, ...]
    elements: tuple[Element, ...]
    """In the order of their numbers, which begin at 1."""


class Browser:
    """A Chromium, and the thread it is driven on. `Browser.shared()` is the one of this process."""

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
        self._starting: asyncio.Lock | None = None

    @staticmethod
    def check() -> None:
        """Raises `MissingDependencyError` where there is no Chromium, or nothing to drive it with."""
        if find_spec("playwright") is None:
            raise MissingDependencyError("web navigation", "web", "playwright")
        find_chromium()

    @classmethod
    def shared(cls) -> Browser:
        """One for each process."""
        return _shared(os.getpid())

    def do(self, work: Coroutine[Any, Any, Any], seconds: float = _SECONDS) -> Any:
        """Does something on the browser's thread, and waits for it."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(seconds)
        except FutureTimeoutError as error:
            future.cancel()
            raise EnvError(f"the browser did not answer within {seconds:g} s") from error
        except self.error as error:
            raise EnvError(f"the browser failed: {error}") from error

    async def context(self) -> Any:
        """What one episode has to itself: cookies, storage, tabs. The browser is started by the first, and again if it died."""
        self._starting = self._starting or asyncio.Lock()
        async with self._starting:
            if self._driver is None:
                self._driver = await self._playwright.async_playwright().start()
            if self._chromium is None or not self._chromium.is_connected():
                options: dict[str, Any] = (
                    {"executable_path": self._program} if self._program else {}
                )
                self._chromium = await self._driver.chromium.launch(
                    args=list(_ARGUMENTS), **options
                )
        context = await self._chromium.new_context(viewport={"width": 1280, "height": 800})
        context.set_default_timeout(_SECONDS * 1000)
        await context.add_init_script(_script("leaving.js"))
        return context

    def close(self) -> None:
        """Ends the browser and its thread."""

        async def end() -> None:
            if self._chromium is not None:
                await self._chromium.close()
            if self._driver is not None:
                await self._driver.stop()

        if self._thread.is_alive():
            with contextlib.suppress(
                Exception
            ):  # at exit, whatever is left is killed with its pipe
                self.do(end(), 10.0)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(5.0)
            if not self._loop.is_running():
                self._loop.close()


class Tab:
    """One page of one episode. Every method blocks until the page has settled."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._context: Any = None
        self._page: Any = None
        self.dialogs: list[str] = []
        """What the page asked or said in a box since it was last looked at; every box is answered with OK."""

    def open(self, url: str) -> None:
        """A new page, with no history and no cookies, at an address."""
        self._browser.do(self._open(url))

    def goto(self, url: str) -> None:
        """To another address."""
        self._browser.do(self._settled(self._page.goto(url)))

    def back(self) -> None:
        """To the page before; nothing where there is none."""
        self._browser.do(self._settled(self._page.go_back()))

    def click(self, number: int) -> None:
        """Clicks on an element."""
        self._browser.do(self._settled(self._element(number).click()))

    def fill(self, number: int, text: str) -> None:
        """Puts a text into a field, in place of what is there."""
        self._browser.do(self._settled(self._element(number).fill(text)))

    def select(self, number: int, option: int) -> None:
        """Chooses an option of a list by its place."""
        self._browser.do(self._settled(self._element(number).select_option(index=option)))

    def outline(self) -> Outline:
        """The page as text; numbers the elements anew."""
        seen = self._browser.do(self._looked())
        elements = (
            Element(e["kind"], e["disabled"], tuple(e.get("options", ()))) for e in seen["elements"]
        )
        return Outline(seen["title"], seen["path"], tuple(seen["lines"]), tuple(elements))

    def close(self) -> None:
        """Gives the page back."""
        context, self._context, self._page = self._context, None, None
        if context is not None:
            with contextlib.suppress(Exception):  # a browser that died has nothing to give back
                self._browser.do(context.close())

    def _element(self, number: int) -> Any:
        return self._page.locator(f"[data-gem='{number}']")

    async def _open(self, url: str) -> None:
        if self._context is None or not self._context.browser.is_connected():
            self._context = await self._browser.context()
        if self._page is not None:
            with contextlib.suppress(Exception):  # it may have died with the browser
                await self._page.close()
        await self._context.clear_cookies()
        self.dialogs.clear()
        self._page = await self._context.new_page()
        self._page.on("dialog", self._answered)
        await self._settled(self._page.goto(url))

    async def _answered(self, dialog: Any) -> None:
        self.dialogs.append(dialog.message)
        await dialog.accept()

    async def _settled(self, work: Any) -> None:
        """Until the page that follows is there, complete."""
        await work
        await self._there(_READY)

    async def _looked(self) -> Any:
        return await self._there(_script("outline.js"))

    async def _there(self, script: str) -> Any:
        """What a script says on a page that is complete and not about to be left; until then it says nothing."""
        while True:  # `do` ends it
            with contextlib.suppress(self._browser.error):  # the page went away meanwhile
                if await self._page.evaluate(_READY):
                    said = await self._page.evaluate(script)
                    if said:
                        return said
            if self._page.is_closed():
                raise EnvError("the browser, or the page in it, is gone")
            await asyncio.sleep(0.01)


def find_chromium() -> str:
    """The Chromium to use; empty for the one Playwright installed."""
    named = os.environ.get("GEM_CHROMIUM", "")
    if named:
        if not shutil.which(named):
            raise MissingDependencyError(
                "web navigation", "web", f"the Chromium that GEM_CHROMIUM names, {named!r}"
            )
        return named
    found = next((path for path in map(shutil.which, _NAMES) if path), None)
    if found:
        return found
    cache_folder = Path(
        os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or Path.home() / ".cache" / "ms-playwright"
    )
    if any(cache_folder.glob("chromium*")):
        return ""
    raise MissingDependencyError(
        "web navigation",
        "web",
        "Chromium: apt-get install chromium, or playwright install chromium, or set GEM_CHROMIUM to one",
    )


@cache
def _shared(pid: int) -> Browser:
    browser = Browser()
    atexit.register(browser.close)
    return browser


@cache
def _script(name: str) -> str:
    return resources.files("gem_envs.web").joinpath(name).read_text(encoding="utf-8")
