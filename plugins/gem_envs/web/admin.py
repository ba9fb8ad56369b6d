"""Admin: the back office of an application, with a long table of users and the settings."""

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

__all__ = ["Admin"]

_FIRST = (
    "Anna",
    "Boris",
    "Cleo",
    "Dario",
    "Elif",
    "Franz",
    "Gina",
    "Henri",
    "Iva",
    "Jakob",
    "Kaya",
    "Luis",
)
_LAST = ("Abel", "Brandt", "Costa", "Duval", "Engel", "Fiori", "Gruber", "Hansen")
_ROLES = ("viewer", "editor", "manager", "owner")
_LANGUAGES = ("English", "French", "Portuguese", "Turkish")
# The browser hides the rows that do not contain the typed text, without a request to the server.
_FILTER = (
    "<p><label>Filter <input id='filter' "
    "oninput=\"for (const row of document.querySelectorAll('tbody tr')) "
    'row.hidden = !row.textContent.toLowerCase().includes(this.value.toLowerCase())"></label></p>'
)


class Admin(Site):
    """The back office; its state is the users by number and the settings."""

    title = "Back Office"
    menu = (("/", "Overview"), ("/users", "Users"), ("/settings", "Settings"))
    kinds: ClassVar = ("role", "disable", "delete", "settings", "count")

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        users = {}
        for number in range(1, 25):
            first = _FIRST[number % len(_FIRST)]
            last = _LAST[(number * 5 + number // 12) % len(_LAST)]
            mail = f"{first}.{last}{number}@office.example".lower()
            users[str(number)] = {
                "name": f"{first} {last}",
                "mail": mail,
                "role": rng.choice(_ROLES[:3]),
                "active": rng.random() < 0.8,
            }
        settings = {
            "name": f"Office {rng.randint(1, 99)}",
            "language": rng.choice(_LANGUAGES),
            "signups": rng.random() < 0.5,
        }
        self.state = {"users": users, "settings": settings}

    def answer(self, request: Request) -> Answer:
        users = self.state["users"]
        match request.path:
            case ():
                active = sum(user["active"] for user in users.values())
                return Page("Overview", f"<p>{len(users)} users, {active} of them active.</p>")
            case ("users",):
                rows = [
                    [
                        escape(u["name"]),
                        u["mail"],
                        u["role"],
                        "active" if u["active"] else "disabled",
                        link(f"/users/{n}", "Edit"),
                    ]
                    for n, u in users.items()
                ]
                return Page("Users", _FILTER + table(("name", "mail", "role", "state", ""), rows))
            case ("users", number) if number in users and request.posted is not None:
                role = request.posted.get("role", "")
                users[number]["role"] = role if role in _ROLES else users[number]["role"]
                users[number]["active"] = request.posted.get("active") == "yes"
                return Redirect("/users")
            case ("users", number) if number in users:
                return self._user(number)
            case ("users", number, "delete") if number in users and request.posted is not None:
                del users[number]
                return Redirect("/users")
            case ("settings",):
                return self._settings(request.posted)
        return self.missing()

    def task_role(self) -> WebTask:
        """Change the role of a user, named by mail address because names repeat."""
        number, user = self._draw_user()
        role = self.rng.choice([r for r in _ROLES if r != user["role"]])
        return WebTask(
            "role",
            f"Give the user with the mail address {user['mail']} the role {role}.",
            self.changed(lambda s: s["users"][number].update(role=role)),
            plan=(
                *self._steps_to(user),
                ("select", "combobox 'Role'", role),
                ("click", "button 'Save'"),
                ("stop", ""),
            ),
        )

    def task_disable(self) -> WebTask:
        """Toggle a checkbox."""
        number, user = self._draw_user()
        word = "Disable" if user["active"] else "Make active again"
        return WebTask(
            "disable",
            f"{word} the user with the mail address {user['mail']}.",
            self.changed(lambda s: s["users"][number].update(active=not user["active"])),
            plan=(
                *self._steps_to(user),
                ("click", "checkbox 'Active'"),
                ("click", "button 'Save'"),
                ("stop", ""),
            ),
        )

    def task_delete(self) -> WebTask:
        """Delete a user and confirm the browser's dialog."""
        number, user = self._draw_user()
        return WebTask(
            "delete",
            f"Delete the user with the mail address {user['mail']}.",
            self.changed(lambda s: s["users"].pop(number)),
            plan=(*self._steps_to(user), ("click", "button 'Delete user'"), ("stop", "")),
        )

    def task_settings(self) -> WebTask:
        """Change two settings at once; the third must not change."""
        settings = self.state["settings"]
        language = self.rng.choice([name for name in _LANGUAGES if name != settings["language"]])
        name = f"Bureau {self.rng.randint(100, 999)}"
        return WebTask(
            "settings",
            f'Change the name of the application to "{name}" and its language to {language}, '
            "and nothing else.",
            self.changed(lambda s: s["settings"].update(name=name, language=language)),
            plan=(
                ("click", "link 'Settings'"),
                ("type", "textbox 'Name'", name),
                ("select", "combobox 'Language'", language),
                ("click", "button 'Save'"),
                ("stop", ""),
            ),
        )

    def task_count(self) -> WebTask:
        """Ask a question about the whole table."""
        role = self.rng.choice(_ROLES[:3])
        count = sum(
            user["role"] == role and user["active"] for user in self.state["users"].values()
        )
        return WebTask(
            "count",
            f"How many active users have the role {role}? Answer with the number alone.",
            self.changed(lambda state: None),
            answer=str(count),
            plan=(("click", "link 'Users'"), ("stop", str(count))),
        )

    def _draw_user(self) -> tuple[str, dict[str, Any]]:
        number = self.rng.choice(sorted(self.state["users"], key=int))
        return number, self.state["users"][number]

    def _steps_to(self, user: dict[str, Any]) -> tuple[tuple[str, ...], ...]:
        return (
            ("click", "link 'Users'"),
            ("type", "textbox 'Filter'", user["mail"]),
            ("click", "link 'Edit'", "", user["mail"]),
        )

    def _user(self, number: str) -> Page:
        user = self.state["users"][number]
        roles, active = options(_ROLES, user["role"]), " checked" * user["active"]
        edit = form(
            f"/users/{number}",
            "Save",
            f"<p><label>Role <select name='role'>{roles}</select></label></p>",
            "<p><label>Active "
            f"<input type='checkbox' name='active' value='yes'{active}></label></p>",
        )
        delete = form(
            f"/users/{number}/delete", "Delete user", ask=f"Delete {user['mail']} for good?"
        )
        return Page(user["name"], f"<p>{user['mail']}</p>{edit}{delete}")

    def _settings(self, posted: Any) -> Answer:
        settings = self.state["settings"]
        if posted is not None:
            if posted.get("name", "").strip() and posted.get("language") in _LANGUAGES:
                signups = posted.get("signups") == "yes"
                settings.update(
                    name=posted["name"].strip(), language=posted["language"], signups=signups
                )
            return Redirect("/settings")
        languages = options(_LANGUAGES, settings["language"])
        name = escape(settings["name"], quote=True)
        signups = " checked" * settings["signups"]
        fields = (
            f"<p><label>Name <input name='name' required value='{name}'></label></p>",
            f"<p><label>Language <select name='language'>{languages}</select></label></p>",
            "<p><label>Allow signups "
            f"<input type='checkbox' name='signups' value='yes'{signups}></label></p>",
        )
        return Page("Settings", form("/settings", "Save", *fields))
