"""Repository: a host of software projects with files, issues, merge requests and commits."""

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

__all__ = ["Repository"]

_PROJECTS = {
    "weather-station": "Readings of a small weather station",
    "recipe-box": "Recipes as plain text files",
    "bird-counter": "Counts birds in garden pictures",
    "tide-clock": "A clock that shows the tides",
}
_PEOPLE = ("adira", "benno", "cyra", "dexter", "edda", "fabio")
_LABELS = ("bug", "feature", "question")
_COMPLAINTS = (
    "Crash on an empty file",
    "Dark mode",
    "Wrong unit in the report",
    "How do I install it?",
    "Support for Greek letters",
    "Slow start on old machines",
    "Times are an hour off",
)
_CHANGES = ("Fix the date parser", "Add a test", "Shorten the manual", "Remove a dead branch")
_ME = "visitor"


class Repository(Site):
    """The host; its state is, by project, stars, files, issues and merge requests."""

    title = "Code Host"
    menu = (("/", "Projects"), ("/starred", "Starred"))
    kinds: ClassVar = ("star", "issue", "close", "merge", "edit", "last_commit", "open_bugs")

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.commits: dict[str, list[tuple[str, str]]] = {
            project: [(rng.choice(_PEOPLE), change) for change in rng.sample(_CHANGES, 3)]
            for project in _PROJECTS
        }
        """(author, message) by project, the newest first."""
        self.state = {project: self._project() for project in _PROJECTS}

    def _project(self) -> dict[str, Any]:
        rng = self.rng
        issues = [
            {
                "title": title,
                "label": rng.choice(_LABELS),
                "open": rng.random() < 0.75,
                "comments": [],
            }
            for title in rng.sample(_COMPLAINTS, 5)
        ]
        issues[0]["open"] = True  # a task may close it
        requests = [
            {"title": title, "author": author, "merged": False}
            for title, author in zip(rng.sample(_CHANGES, 3), rng.sample(_PEOPLE, 3), strict=True)
        ]
        config = f"port={rng.randint(1000, 9999)}; retries={rng.randint(2, 9)}; log=quiet"
        files = {"README": "Read the manual first.", "config.ini": config}
        return {"starred": False, "files": files, "issues": issues, "requests": requests}

    def answer(self, request: Request) -> Answer:
        if request.path == ():
            rows = [[link(f"/{name}", name), about] for name, about in _PROJECTS.items()]
            return Page("Projects", table(("project", "about"), rows))
        if request.path == ("starred",):
            names = [link(f"/{name}", name) for name, p in self.state.items() if p["starred"]]
            return Page("Starred", "".join(f"<p>{n}</p>" for n in names) or "<p>None yet.</p>")
        project, *rest = request.path
        if project not in _PROJECTS:
            return self.missing()
        if request.posted is not None:
            return self._change(project, rest, request.posted)
        return self._page(project, rest)

    def task_star(self) -> WebTask:
        """Star a project."""
        project = self._draw_project()
        return WebTask(
            "star",
            f"Star the project {project}.",
            self.changed(lambda s: s[project].update(starred=True)),
            plan=(("click", f"link '{project}'"), ("click", "button 'Star'"), ("stop", "")),
        )

    def task_issue(self) -> WebTask:
        """Open an issue with a label."""
        project, label = self._draw_project(), self.rng.choice(_LABELS)
        title = f"{self.rng.choice(('Typo', 'Gap', 'Noise'))} in line {self.rng.randint(10, 99)}"
        issue = {"title": title, "label": label, "open": True, "comments": []}
        return WebTask(
            "issue",
            f'Open an issue in the project {project} with the title "{title}" '
            f"and the label {label}.",
            self.changed(lambda s: s[project]["issues"].append(issue)),
            plan=(
                *self._steps_to(project, "Issues"),
                ("type", "textbox 'Title'", title),
                ("select", "combobox 'Label'", label),
                ("click", "button 'Open issue'"),
                ("stop", ""),
            ),
        )

    def task_close(self) -> WebTask:
        """Close an issue."""
        project = self._draw_project()
        number, issue = self._draw_issue(project)

        def close(state: Any) -> None:
            state[project]["issues"][number]["open"] = False

        return WebTask(
            "close",
            f'Close the issue "{issue["title"]}" of the project {project}.',
            self.changed(close),
            plan=(
                *self._steps_to_issue(project, issue),
                ("click", "button 'Close issue'"),
                ("stop", ""),
            ),
        )

    def task_merge(self) -> WebTask:
        """Merge the request of one of several authors."""
        project = self._draw_project()
        number = self.rng.randrange(3)
        author = self.state[project]["requests"][number]["author"]

        def merge(state: Any) -> None:
            state[project]["requests"][number]["merged"] = True

        return WebTask(
            "merge",
            f"Merge the merge request of {author} in the project {project}.",
            self.changed(merge),
            plan=(
                *self._steps_to(project, "Merge requests"),
                ("click", "button 'Merge'", "", f"{author}:"),
                ("stop", ""),
            ),
        )

    def task_edit(self) -> WebTask:
        """Change one setting in a file and keep the others."""
        project, retries = self._draw_project(), self.rng.randint(10, 99)
        port, _, log = self.state[project]["files"]["config.ini"].split("; ")
        after = f"{port}; retries={retries}; {log}"

        def edit(state: Any) -> None:
            state[project]["files"]["config.ini"] = after

        return WebTask(
            "edit",
            f"In the project {project}, set retries to {retries} in the file config.ini; "
            "the rest of the file must stay as it is.",
            self.changed(edit),
            plan=(
                *self._steps_to(project, "config.ini"),
                ("type", "textbox 'Content'", after),
                ("click", "button 'Save file'"),
                ("stop", ""),
            ),
        )

    def task_last_commit(self) -> WebTask:
        """Ask for the author of the newest commit."""
        project = self._draw_project()
        author = self.commits[project][0][0]
        return WebTask(
            "last_commit",
            f"Who wrote the newest commit of the project {project}?",
            self.changed(lambda state: None),
            answer=author,
            plan=(*self._steps_to(project, "Commits"), ("stop", author)),
        )

    def task_open_bugs(self) -> WebTask:
        """Ask a question about a table."""
        project = self._draw_project()
        issues = self.state[project]["issues"]
        count = str(sum(issue["open"] and issue["label"] == "bug" for issue in issues))
        return WebTask(
            "open_bugs",
            f"How many open issues with the label bug has the project {project}? "
            "Answer with the number alone.",
            self.changed(lambda state: None),
            answer=count,
            plan=(*self._steps_to(project, "Issues"), ("stop", count)),
        )

    def write(self, text: str, said: str) -> WebTask:
        """Write the text as a comment on an issue."""
        project = self._draw_project()
        number, issue = self._draw_issue(project)

        def comment(state: Any) -> None:
            state[project]["issues"][number]["comments"].append(text)

        return WebTask(
            "comment",
            f'Comment on the issue "{issue["title"]}" of the project {project} with {said}',
            self.changed(comment),
            plan=(
                *self._steps_to_issue(project, issue),
                ("type", "textbox 'Comment'", text),
                ("click", "button 'Send comment'"),
                ("stop", ""),
            ),
        )

    def _draw_project(self) -> str:
        return self.rng.choice(tuple(_PROJECTS))

    def _draw_issue(self, project: str) -> tuple[int, dict[str, Any]]:
        issues = self.state[project]["issues"]
        number = self.rng.choice([i for i, issue in enumerate(issues) if issue["open"]])
        return number, issues[number]

    def _steps_to(self, project: str, name: str) -> tuple[tuple[str, ...], ...]:
        return ("click", f"link '{project}'"), ("click", f"link '{name}'")

    def _steps_to_issue(self, project: str, issue: Any) -> tuple[tuple[str, ...], ...]:
        return *self._steps_to(project, "Issues"), ("click", f"link '{issue['title']}'")

    def _page(self, name: str, rest: list[str]) -> Page:
        project = self.state[name]
        match rest:
            case []:
                return self._overview(name)
            case ["issues"]:
                return self._issues(name)
            case ["issues", number] if number in map(str, range(len(project["issues"]))):
                return self._issue(name, number)
            case ["requests"]:
                return self._requests(name)
            case ["commits"]:
                rows = [[author, escape(message)] for author, message in self.commits[name]]
                return Page(f"Commits of {name}", table(("author", "message"), rows))
            case ["files", file] if file in project["files"]:
                text = (
                    "<p><label>Content <textarea name='text'>"
                    f"{escape(project['files'][file])}</textarea></label></p>"
                )
                return Page(file, form(f"/{name}/files/{file}", "Save file", text))
        return self.missing()

    def _overview(self, name: str) -> Page:
        project = self.state[name]
        files = "".join(f"<li>{link(f'/{name}/files/{f}', f)}</li>" for f in project["files"])
        parts = (("issues", "Issues"), ("requests", "Merge requests"), ("commits", "Commits"))
        links = " ".join(link(f"/{name}/{path}", text) for path, text in parts)
        star = form(f"/{name}/star", "Unstar" if project["starred"] else "Star")
        return Page(name, f"<p>{_PROJECTS[name]}</p><p>{links}</p>{star}<ul>{files}</ul>")

    def _issues(self, name: str) -> Page:
        rows = [
            [
                link(f"/{name}/issues/{number}", issue["title"]),
                issue["label"],
                "open" if issue["open"] else "closed",
            ]
            for number, issue in enumerate(self.state[name]["issues"])
        ]
        new = form(
            f"/{name}/issues",
            "Open issue",
            "<p><label>Title <input name='title' required></label></p>",
            f"<p><label>Label <select name='label'>{options(_LABELS)}</select></label></p>",
        )
        return Page(f"Issues of {name}", table(("issue", "label", "state"), rows) + new)

    def _issue(self, name: str, number: str) -> Page:
        issue = self.state[name]["issues"][int(number)]
        comments = "".join(f"<p>{_ME}: {escape(text)}</p>" for text in issue["comments"])
        comment = form(
            f"/{name}/issues/{number}/comment",
            "Send comment",
            "<p><label>Comment <textarea name='text' required></textarea></label></p>",
        )
        close = form(f"/{name}/issues/{number}/close", "Close issue") if issue["open"] else ""
        status = "open" if issue["open"] else "closed"
        return Page(issue["title"], f"<p>{issue['label']}, {status}</p>{comments}{comment}{close}")

    def _requests(self, name: str) -> Page:
        lines = ""
        for number, request in enumerate(self.state[name]["requests"]):
            merge = form(f"/{name}/requests/{number}/merge", "Merge")
            merge = merge.replace("<form", "<form style='display:inline'", 1)
            end = "(merged)" if request["merged"] else merge
            lines += f"<div>{request['author']}: {escape(request['title'])} {end}</div>"
        return Page(f"Merge requests of {name}", lines)

    def _change(self, name: str, rest: list[str], posted: Any) -> Answer:
        project = self.state[name]
        text, title = posted.get("text", "").strip(), posted.get("title", "").strip()
        match rest:
            case ["star"]:
                project["starred"] = not project["starred"]
                return Redirect(f"/{name}")
            case ["issues"]:
                if title and posted.get("label") in _LABELS:
                    new = {"title": title, "label": posted["label"], "open": True, "comments": []}
                    project["issues"].append(new)
                return Redirect(f"/{name}/issues")
            case ["issues", number, action] if number in map(str, range(len(project["issues"]))):
                issue = project["issues"][int(number)]
                if action == "close":
                    issue["open"] = False
                elif action == "comment" and text:
                    issue["comments"].append(text)
                return Redirect(f"/{name}/issues/{number}")
            case ["requests", number, "merge"] if number in map(
                str, range(len(project["requests"]))
            ):
                project["requests"][int(number)]["merged"] = True
                return Redirect(f"/{name}/requests")
            case ["files", file] if file in project["files"]:
                project["files"][file] = text
                return Redirect(f"/{name}/files/{file}")
        return self.missing()
