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
    Failure,
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
        chromium = playwright.chromium.launch(
            executable_path=executable, args=args, timeout=300_000
        )
        yield chromium
        chromium.close()


@pytest.fixture
def opened(
    browser: Any, serving: Serving, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Opened]:
    """Open a page at its first episode, or where the address points.

    Any other network request and any error on the page fails the test. The page closes before its
    server (`serving`) does.
    """
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
        page.goto(url if "#" in url else f"{url}#0")
        expect(page.locator("h2")).to_be_visible(timeout=60_000)
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


def test_tokens_of_a_failed_episode_are_not_shown_as_trained(
    opened: Opened, sampled: Path, tmp_path: Path
) -> None:
    played = next(iter(read_episodes(sampled)))
    failure = Failure.from_error(ValueError("broken"), "step")
    with RecordWriter(tmp_path / "failed.jsonl") as record:
        record.write(replace(played, stop=StopReason.ENV_ERROR, failure=failure))
    page = opened(view(tmp_path / "failed.jsonl", "--tokenizer", "tiny"))
    page.keyboard.press("t")
    tokens = page.locator(".turn").first.locator(".message.assistant .token")
    expect(tokens).to_have_count(len(played.turns[0].action_ids))
    assert "trained" not in (tokens.first.get_attribute("title") or "").replace("not trained", "")


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


def test_search_shows_an_episode_that_matches(opened: Opened, tmp_path: Path) -> None:
    def episode(number: int) -> Episode:
        turn = Turn((Message("user", f"question {number}"),), f"answer {number}", 1.0)
        return Episode("x:Y", number, (turn,), StopReason.TERMINATED)

    page = opened(view(write(tmp_path / "e.jsonl", map(episode, range(20)))))
    expect(page.get_by_text("answer 0", exact=True)).to_be_visible()
    page.locator("#search").fill("answer 17")
    expect(page.get_by_text("answer 17", exact=True)).to_be_visible()
    expect(page.locator(".row.open")).to_contain_text("#17 ")
    page.locator("#search").fill("nowhere")
    expect(page.locator("main")).to_have_text("No episode passes the filters.")
    page.locator("#reset").click()
    expect(page.locator("#totals")).to_contain_text("20 of 20 episodes")


def trained(update: int, seed: int, advantage: float | None, **info: Any) -> Episode:
    """An episode as an adapter records it."""
    turn = Turn((Message("user", "q"),), f"a{update}", 1.0 * (seed % 2), action_ids=(1,))
    facts = {"update": update, "success": bool(seed % 2), "advantages": [advantage], **info}
    return Episode("x:Y", seed, (turn,), StopReason.TERMINATED, final_info=facts)


@pytest.fixture
def training(tmp_path: Path) -> Path:
    """Three updates with two seeds, two episodes each, and an evaluation."""
    episodes = [
        trained(update, seed, 0.25 + sample)
        for update in range(3)
        for seed in range(2)
        for sample in range(2)
    ]
    evaluation = replace(episodes[0], final_info={"update": 2, "evaluation": True})
    failed = replace(
        episodes[1], stop=StopReason.ENV_ERROR, failure=Failure("KeyError", "'x'", "step")
    )
    (tmp_path / "rebn-0").mkdir()
    return write(tmp_path / "rebn-0" / "episodes.jsonl", [*episodes, evaluation, failed])


def test_overview_comes_first_and_its_parts_filter(opened: Opened, training: Path) -> None:
    page = opened(view(training) + "#")
    expect(page.locator("h2")).to_have_text("rebn-0")
    expect(page.locator("#title")).to_have_text("rebn-0")
    headings = ["Returns", "Success by update, in %", "Environments", "How episodes ended"]
    expect(page.locator("h3")).to_have_text([*headings, "Problems"])
    page.locator(".column[title^='update 1:']").click()
    expect(page.locator("#totals")).to_contain_text("4 of 14 episodes")
    page.locator(".column[title^='return 0:']").click()
    expect(page.locator("#totals")).to_contain_text("2 of 14 episodes")
    page.locator("#reset").click()
    page.get_by_role("button", name="KeyError in step").click()
    expect(page.locator("#totals")).to_contain_text("1 of 14 episodes")
    page.locator("#reset").click()
    page.select_option("#purpose", "true")
    expect(page.locator("#totals")).to_contain_text("1 of 14 episodes")
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    expect(page.locator(".facts-line")).to_contain_text("2, evaluation")
    page.keyboard.press("o")
    expect(page.locator("h3").first).to_be_visible()


def test_recorded_advantages_are_shown_as_trained(opened: Opened, training: Path) -> None:
    page = opened(view(training))
    expect(page.locator(".turn .bar")).to_contain_text("advantage +0.25")
    expect(page.locator(".turn .bar")).not_to_contain_text("recomputed")
    expect(page.locator(".facts-line")).to_contain_text("advantages as trained")
    page.locator("#list").focus()
    page.keyboard.press("G")
    page.keyboard.press("k")
    expect(page.locator(".turn .bar")).to_contain_text("(recomputed)")
    expect(page.locator(".facts-line")).to_contain_text("recomputed: rebn, gamma 1")


def test_episodes_of_a_seed_are_shown_side_by_side(opened: Opened, training: Path) -> None:
    page = opened(view(training) + "#4")
    page.keyboard.press("s")
    expect(page.locator("h2")).to_have_text("x:Y, seed 0, update 1")
    expect(page.locator(".columns .one")).to_have_count(2)
    expect(page.locator(".columns .one").nth(1)).to_contain_text("advantage +1.25")
    page.locator(".columns .link").nth(1).click()
    expect(page.locator(".row.open")).to_contain_text("#5 ")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [0, 1, 30])
def test_overview_of_any_number_of_episodes(
    opened: Opened, browser: Any, tmp_path: Path, size: int, scheme: Any
) -> None:
    episodes = run_batch(tasks_for(EASY, range(size)), RandomPlayer()) if size else []
    page = opened(view(write(tmp_path / "episodes.jsonl", episodes)) + "#")
    page.emulate_media(color_scheme=scheme)
    expect(page.locator("#totals")).to_contain_text(f"{size} of {size} episode")
    for key in "jkgGnpstfo":  # none of them may fail without an episode
        page.keyboard.press(key)
    amounts = page.locator(".chart").first.locator(".amount").all_text_contents() if size else []
    assert sum(map(int, amounts)) == size


def test_overview_shows_hostile_text_as_plain_text(opened: Opened, tmp_path: Path) -> None:
    page = opened(view(write(tmp_path / "hostile.jsonl", hostile_episodes())) + "#")
    expect(page.locator("h3").first).to_be_visible()
    assert page.evaluate("window.hacked") is None
    assert page.locator("main img, main iframe, main script, main style, main a").count() == 0


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
    assert times[20] < 16, f"nine of ten jumps took over {times[20]} ms"
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
