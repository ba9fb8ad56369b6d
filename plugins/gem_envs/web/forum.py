"""Forum: boards with threads of posts; visitors reply, vote, follow and start threads."""

from __future__ import annotations

import random
from html import escape
from typing import Any, ClassVar

from gem_envs.web.site import (
    Answer,
    Page,
    Redirect,
    Request,
    Site,
    WebTask,
    form,
    link,
    options,
    table,
)

__all__ = ["Forum"]

_BOARDS = {
    "cycling": ("bike", "route", "brakes"),
    "cooking": ("soup", "oven", "spices"),
    "astronomy": ("comet", "lens", "eclipse"),
}
_OPENINGS = (
    "Best {} for beginners",
    "Question about my {}",
    "Trouble with the {}",
    "Show me your {}",
    "What I learned about {}",
)
_REMARKS = (
    "I had the same last year.",
    "Have you tried it in the morning?",
    "The cheap one works just as well.",
    "Thanks, that helped a lot.",
    "I would not do that again.",
    "There is a good book about it.",
    "Ask at the shop around the corner.",
)
_PEOPLE = ("otter", "magpie", "lynx", "badger", "heron", "marten", "newt", "vole")
_ME = "visitor"


class Forum(Site):
    """The forum; its state is the threads by number, with their posts and a `followed` flag."""

    title = "Open Forum"
    menu = (("/", "Boards"), ("/new", "New thread"), ("/followed", "Followed threads"))
    kinds: ClassVar = ("reply", "vote", "start", "follow", "most_votes")

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        threads: dict[str, dict[str, Any]] = {}
        for board, topics in _BOARDS.items():
            for topic in topics:
                for opening in rng.sample(_OPENINGS, 2):
                    people = rng.sample(_PEOPLE, rng.randint(3, 5))
                    votes = rng.sample(range(1, 40), len(people))
                    posts = [
                        {"author": a, "text": t, "votes": v}
                        for a, t, v in zip(
                            people, rng.sample(_REMARKS, len(people)), votes, strict=True
                        )
                    ]
                    title = opening.format(topic)
                    threads[str(len(threads) + 1)] = {
                        "board": board,
                        "title": title,
                        "posts": posts,
                        "followed": False,
                    }
        self.state = {"threads": threads}

    def answer(self, request: Request) -> Answer:
        threads = self.state["threads"]
        match request.path:
            case ():
                boards = "".join(f"<li>{link(f'/board/{board}', board)}</li>" for board in _BOARDS)
                return Page("Boards", f"<ul>{boards}</ul>")
            case ("board", board) if board in _BOARDS:
                rows = [
                    [
                        link(f"/thread/{n}", t["title"]),
                        t["posts"][0]["author"],
                        str(len(t["posts"])),
                    ]
                    for n, t in threads.items()
                    if t["board"] == board
                ]
                return Page(f"Board {board}", table(("thread", "started by", "posts"), rows))
            case ("followed",):
                names = [
                    link(f"/thread/{n}", t["title"]) for n, t in threads.items() if t["followed"]
                ]
                body = "".join(f"<p>{name}</p>" for name in names) or "<p>None yet.</p>"
                return Page("Followed threads", body)
            case ("new",):
                return self._new(request.posted)
            case ("thread", number) if number in threads:
                return self._thread(number)
            case ("thread", number, action) if number in threads and request.posted is not None:
                return self._change(number, action, request.posted)
        return self.missing()

    def task_reply(self) -> WebTask:
        """Reply in a thread."""
        number, thread = self._draw_thread()
        remark = self.rng.choice(_REMARKS)
        text = f"{remark} Greetings from {self.rng.choice(('Bergen', 'Lyon', 'Porto'))}."
        return self._reply(number, thread, text, f"exactly this text: {text}")

    def write(self, text: str, said: str) -> WebTask:
        """Write the text as a reply."""
        return self._reply(*self._draw_thread(), text, said)

    def _reply(self, number: str, thread: dict[str, Any], text: str, said: str) -> WebTask:
        return WebTask(
            "reply",
            f'In the board {thread["board"]}, reply to the thread "{thread["title"]}" with {said}',
            self.changed(
                lambda s: s["threads"][number]["posts"].append(
                    {"author": _ME, "text": text, "votes": 0}
                )
            ),
            plan=(
                *self._steps_to(thread),
                ("type", "textbox 'Your reply'", text),
                ("click", "button 'Send reply'"),
                ("stop", ""),
            ),
        )

    def task_vote(self) -> WebTask:
        """Vote for a post with one of many identical buttons."""
        number, thread = self._draw_thread()
        index = self.rng.randrange(len(thread["posts"]))
        post = thread["posts"][index]

        def vote(state: Any) -> None:
            state["threads"][number]["posts"][index]["votes"] += 1

        return WebTask(
            "vote",
            f'In the board {thread["board"]}, in the thread "{thread["title"]}", '
            f"vote once for the post of {post['author']}.",
            self.changed(vote),
            plan=(
                *self._steps_to(thread),
                ("click", "button 'Vote'", "", f"{post['author']}:"),
                ("stop", ""),
            ),
        )

    def task_start(self) -> WebTask:
        """Start a thread in the right board."""
        board = self.rng.choice(tuple(_BOARDS))
        title = f"Meeting in {self.rng.choice(('May', 'June', 'July'))}"
        text = f"Who comes? We are {self.rng.randint(3, 12)} so far."
        thread = {
            "board": board,
            "title": title,
            "posts": [{"author": _ME, "text": text, "votes": 0}],
            "followed": False,
        }
        number = str(len(self.state["threads"]) + 1)
        return WebTask(
            "start",
            f'Start a thread in the board {board} with the title "{title}" '
            f"and exactly this text: {text}",
            self.changed(lambda s: s["threads"].update({number: thread})),
            plan=(
                ("click", "link 'New thread'"),
                ("select", "combobox 'Board'", board),
                ("type", "textbox 'Title'", title),
                ("type", "textbox 'Text'", text),
                ("click", "button 'Start thread'"),
                ("stop", ""),
            ),
        )

    def task_follow(self) -> WebTask:
        """Follow a thread."""
        number, thread = self._draw_thread()
        return WebTask(
            "follow",
            f'Follow the thread "{thread["title"]}" of the board {thread["board"]}.',
            self.changed(lambda s: s["threads"][number].update(followed=True)),
            plan=(*self._steps_to(thread), ("click", "button 'Follow'"), ("stop", "")),
        )

    def task_most_votes(self) -> WebTask:
        """Ask a question about a page."""
        _, thread = self._draw_thread()
        best = max(thread["posts"], key=lambda post: int(post["votes"]))
        return WebTask(
            "most_votes",
            f'In the thread "{thread["title"]}" of the board {thread["board"]}, '
            "who wrote the post with the most votes?",
            self.changed(lambda state: None),
            answer=best["author"],
            plan=(*self._steps_to(thread), ("stop", best["author"])),
        )

    def _draw_thread(self) -> tuple[str, dict[str, Any]]:
        number = self.rng.choice(sorted(self.state["threads"], key=int))
        return number, self.state["threads"][number]

    def _steps_to(self, thread: dict[str, Any]) -> tuple[tuple[str, ...], ...]:
        return ("click", f"link '{thread['board']}'"), ("click", f"link '{thread['title']}'")

    def _thread(self, number: str) -> Page:
        thread = self.state["threads"][number]
        posts = ""
        for index, post in enumerate(thread["posts"]):
            hidden = f"<input type='hidden' name='post' value='{index}'>"
            vote = form(f"/thread/{number}/vote", "Vote", hidden)
            vote = vote.replace("<form", "<form style='display:inline'", 1)
            text = f"{post['author']}: {escape(post['text'])} ({post['votes']} votes)"
            posts += f"<div>{text}{vote}</div>"
        reply = form(
            f"/thread/{number}/reply",
            "Send reply",
            "<p><label>Your reply <textarea name='text' required></textarea></label></p>",
        )
        follow = form(
            f"/thread/{number}/follow", "Stop following" if thread["followed"] else "Follow"
        )
        board = link("/board/" + thread["board"], thread["board"])
        body = f"{posts}<h2>Reply</h2>{reply}{follow}<p>Board: {board}</p>"
        return Page(thread["title"], body)

    def _change(self, number: str, action: str, posted: Any) -> Answer:
        thread = self.state["threads"][number]
        if action == "reply" and posted.get("text", "").strip():
            thread["posts"].append({"author": _ME, "text": posted["text"].strip(), "votes": 0})
        elif action == "vote" and posted.get("post", "") in map(str, range(len(thread["posts"]))):
            thread["posts"][int(posted["post"])]["votes"] += 1
        elif action == "follow":
            thread["followed"] = not thread["followed"]
        return Redirect(f"/thread/{number}")

    def _new(self, posted: Any) -> Answer:
        if posted is not None:
            names = ("board", "title", "text")
            board, title, text = (posted.get(name, "").strip() for name in names)
            if board in _BOARDS and title and text:
                number = str(len(self.state["threads"]) + 1)
                posts = [{"author": _ME, "text": text, "votes": 0}]
                self.state["threads"][number] = {
                    "board": board,
                    "title": title,
                    "posts": posts,
                    "followed": False,
                }
                return Redirect(f"/thread/{number}")
        fields = (
            f"<p><label>Board <select name='board'>{options(_BOARDS)}</select></label></p>",
            "<p><label>Title <input name='title' required></label></p>",
            "<p><label>Text <textarea name='text' required></textarea></label></p>",
        )
        return Page("New thread", form("/new", "Start thread", *fields))
