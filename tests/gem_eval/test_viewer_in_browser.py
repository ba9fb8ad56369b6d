"""The viewer in headless Chromium: its features, and its defence against hostile model output.

GEM_SCREENSHOTS=FOLDER keeps the screenshots.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hostile_episodes import HOSTILE, hostile_episodes
from playwright.sync_api import Page, expect, sync_playwright

from gem_core import (
    Episode,
    Message,
    RandomPlayer,
    Renderer,
    Rollout,
    Sampling,
    StopReason,
    Turn,
    advantages,
    run_batch,
    tasks_for,
)
from gem_core.__main__ import main
from gem_core.policies import TransformersPolicy, load_tiny
from gem_core.records.file import RecordWriter, read_episodes
from gem_eval.viewer import ViewerServer

EASY = "game:GuessTheNumber-v0-easy"
MANY = 10_000
Opened = Callable[[str], Page]
Serving = Callable[[Path], str]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    names = ("chromium", "chromium-browser", "google-chrome")
    executable = next(filter(None, map(shutil.which, names)), None)
    if executable is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    with sync_playwright() as playwright:
        # Chromium's sandbox does not work for root, and CI runs as root
        args = ["--no-sandbox"] if os.geteuid() == 0 else []
        chromium = playwright.chromium.launch(executable_path=executable, args=args)
        yield chromium
        chromium.close()


@pytest.fixture
def opened(browser: Any, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Opened]:
    """Open a page; any other network request and any error on the page fails the test."""
    problems: list[str] = []
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.set_default_timeout(60_000)
    expect.set_options(timeout=30_000)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text))
    page.on("dialog", lambda dialog: problems.append(f"dialog {dialog.message}"))

    def open_page(url: str) -> Page:
        def check_request(request: Any) -> None:
            if not request.url.startswith(url.partition("#")[0]):
                problems.append(f"request {request.url}")

        page.on("request", check_request)
        page.goto(url)
        expect(page.locator(".turn").first).to_be_visible(timeout=60_000)
        return page

    yield open_page
    folder = Path(os.environ.get("GEM_SCREENSHOTS") or tmp_path)
    page.screenshot(path=folder / f"{request.node.name}.png")
    page.close()
    assert problems == []


@pytest.fixture
def serving() -> Iterator[Serving]:
    """Serve a record and return the address."""
    started: list[tuple[ViewerServer, threading.Thread]] = []

    def serve(path: Path) -> str:
        server = ViewerServer(path)
        thread = threading.Thread(target=server.serve)
        thread.start()
        started.append((server, thread))
        return server.url

    yield serve
    for server, thread in started:
        server.close()
        thread.join()


def view(record: Path, *args: str) -> str:
    assert main(["view", str(record), *args]) == 0
    return record.with_suffix(".html").as_uri()


def write(path: Path, episodes: Any) -> Path:
    with RecordWriter(path) as record:
        for episode in episodes:
            record.write(episode)
    return path


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Episodes of the tiny model, with ids and logprobs."""
    model, tokenizer = load_tiny()
    policy = TransformersPolicy(model, tokenizer, seed=0)
    with Rollout(policy, Renderer(tokenizer), sampling=Sampling(max_tokens=24)) as engine:
        episodes = engine.run_batch(tasks_for(EASY, range(12), samples=2))
    return write(tmp_path_factory.mktemp("sampled") / "episodes.jsonl", episodes)


def assert_harmless(page: Page) -> None:
    for key in ("f", "t", "t"):
        page.keyboard.press(key)
    for text in HOSTILE[:6]:
        assert page.get_by_text(text).count() > 0, f"{text} is not shown as text"
    assert page.evaluate("window.hacked") is None
    assert page.title() != "hacked"
    assert (
        page.locator("main img, main iframe, main script, main style, main a, main svg").count()
        == 0
    )


def test_page_shows_hostile_text_as_plain_text(opened: Opened, tmp_path: Path) -> None:
    page = opened(view(write(tmp_path / "hostile.jsonl", hostile_episodes())))
    assert_harmless(page)
    page.keyboard.press("j")
    expect(page.locator(".failure")).to_be_visible()
    assert_harmless(page)


def test_server_shows_hostile_text_as_plain_text(
    opened: Opened, serving: Serving, tmp_path: Path
) -> None:
    assert_harmless(opened(serving(write(tmp_path / "hostile.jsonl", hostile_episodes()))))


def test_content_security_policy_blocks_markup_and_requests(browser: Any, sampled: Path) -> None:
    page = browser.new_page()
    try:
        page.goto(view(sampled))
        markup = "<img src=x onerror='window.hacked=1'>"
        error = page.evaluate(
            "m => { try { document.body.innerHTML = m; return '' } catch (e) { return e.name } }",
            markup,
        )
        assert error == "TypeError"
        page.evaluate(
            """() => {
              const image = document.createElement("img");
              image.src = "http://127.0.0.1:9/x";
              document.body.append(image);
            }"""
        )
        page.wait_for_timeout(500)
        assert page.evaluate("window.hacked") is None
        responses = page.evaluate(
            "performance.getEntriesByType('resource').filter(r => r.responseStatus).length"
        )
        assert responses == 0
    finally:
        page.close()


def test_page_shows_the_tokens_and_advantages_of_an_episode(opened: Opened, sampled: Path) -> None:
    episodes = list(read_episodes(sampled))
    page = opened(view(sampled, "--tokenizer", "tiny", "--gamma", "0.9"))
    first = page.locator(".turn").first
    expect(first.locator(".message.assistant .text")).to_have_text(episodes[0].turns[0].action)
    credit = advantages(episodes, "rebn", gamma=0.9)[0][0]
    expect(first.locator(".bar")).to_contain_text(
        f"advantage {'+' if credit > 0 else ''}{round(credit, 3):g}"
    )
    page.keyboard.press("t")
    sampled_tokens = page.locator(".turn").first.locator(".message.assistant .token")
    expect(sampled_tokens).to_have_count(len(episodes[0].turns[0].action_ids))
    assert "logprob" in (sampled_tokens.first.get_attribute("title") or "")
    assert "trained" in (sampled_tokens.first.get_attribute("title") or "")
    prompt = page.locator(".turn").first.locator(".token.masked")
    expect(prompt).to_have_count(len(episodes[0].turns[0].added_ids))
    assert "I am thinking of a whole number" in "".join(prompt.all_text_contents())


def test_list_supports_filters_sorting_search_and_keys(opened: Opened, sampled: Path) -> None:
    episodes = list(read_episodes(sampled))
    page = opened(view(sampled))
    solved = sum(bool(e.success) for e in episodes)
    assert 0 < solved < len(episodes)
    page.select_option("#success", "true")
    expect(page.locator("#totals")).to_contain_text(f"{solved} of {len(episodes)} episodes")
    page.select_option("#success", "")
    page.select_option("#sort", "t")
    shortest = min(len(e.turns) for e in episodes)
    turns = "1 turn" if shortest == 1 else f"{shortest} turns"
    expect(page.locator(".row").first).to_contain_text(f" {turns} · ")
    page.locator("#direction").click()
    longest = max(len(e.turns) for e in episodes)
    expect(page.locator(".row").first).to_contain_text(f"{longest} turns")
    page.keyboard.press("/")
    page.keyboard.type("WHOLE number")
    expect(page.locator("#totals")).to_contain_text(f"{len(episodes)} of")
    page.locator("#search").fill("no text has this in it")
    expect(page.locator("#totals")).to_contain_text("0 of")
    page.locator("#search").fill("")
    expect(page.locator("#totals")).to_contain_text(f"{len(episodes)} of")
    page.keyboard.press("Escape")
    page.select_option("#sort", "n")
    page.locator("#direction").click()
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("j")
    expect(page.locator(".row.open")).to_contain_text("#1 ")
    page.keyboard.press("G")
    expect(page.locator(".row.open")).to_contain_text(f"#{len(episodes) - 1} ")
    page.keyboard.press("n")
    expect(page.locator(".turn.at")).to_have_count(1)


def test_tool_calls_are_folded_and_unfold_with_a_key(opened: Opened, tmp_path: Path) -> None:
    page = opened(view(write(tmp_path / "hostile.jsonl", hostile_episodes())))
    call = page.locator(".message.assistant details").first
    expect(call.locator("summary")).to_contain_text("tool call")
    assert call.get_attribute("open") is None
    page.keyboard.press("f")
    assert page.locator(".message.assistant details").first.get_attribute("open") is not None


@pytest.mark.parametrize("calls", ["text", {"name": "x"}, [None, 3, {"name": "python"}], 7])
def test_odd_tool_calls_do_not_hide_the_episode(opened: Opened, tmp_path: Path, calls: Any) -> None:
    info = {"use_tool": True, "tool_calls": calls}
    turn = Turn((Message("user", "q"),), "the action", 1.0, info=info)
    episode = Episode("x:Y", 1, (turn,), StopReason.TERMINATED, final_observation="the end")
    page = opened(view(write(tmp_path / "odd.jsonl", [episode])))
    expect(page.get_by_text("the action")).to_have_count(1)
    expect(page.get_by_text("the end")).to_have_count(1)


def test_list_of_ten_thousand_episodes_scrolls_smoothly(opened: Opened, tmp_path: Path) -> None:
    """The list only has elements for the visible rows, so a jump takes a few milliseconds."""
    games = ("game:GuessTheNumber-v0-easy", "game:Sudoku-v0-easy", "game:Hangman-v0-easy")
    some = run_batch([t for game in games for t in tasks_for(game, range(40))], RandomPlayer())
    many = (replace(some[i % len(some)], seed=i) for i in range(MANY))
    page = opened(view(write(tmp_path / "many.jsonl", many)))
    expect(page.locator("#totals")).to_contain_text(f"{MANY} of {MANY}")
    times = page.evaluate(
        """() => {
          const list = document.getElementById("list"), times = [];
          for (let i = 0; i < 200; i++) {
            list.scrollTop = (i * 7919 * 48) % list.scrollHeight;
            const began = performance.now();
            draw();
            times.push(performance.now() - began);
          }
          return times.sort((a, b) => a - b);
        }"""
    )
    assert times[100] < 16, f"the median jump took {times[100]} ms"
    assert page.locator(".row").count() < 60
    page.locator("#search").fill("I am thinking of a whole number")
    guessing = sum(some[i % len(some)].env_id == games[0] for i in range(MANY))
    expect(page.locator("#totals")).to_contain_text(f"{guessing} of {MANY}")
    page.select_option("#sort", "r")
    page.keyboard.press("Escape")
    for _ in range(20):
        page.keyboard.press("j")
    expect(page.locator(".row.open")).to_be_visible()


def test_page_follows_a_growing_record(opened: Opened, serving: Serving, tmp_path: Path) -> None:
    episodes = run_batch(tasks_for(EASY, range(5)), RandomPlayer())
    path = tmp_path / "growing.jsonl"
    with RecordWriter(path) as record:
        record.write(episodes[0])
        page = opened(serving(path))
        expect(page.locator("#totals")).to_contain_text("1 of 1")
        expect(page.locator(".turn .bar").first).to_contain_text("advantage")
        for episode in episodes[1:]:
            record.write(episode)
        expect(page.locator("#totals")).to_contain_text("5 of 5")
    page.keyboard.press("G")
    expect(page.locator(".row.open")).to_contain_text("#4 ")
