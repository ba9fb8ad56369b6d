"""TODO: change and query projects and tasks of a generated to-do list."""

from __future__ import annotations

import datetime
import random
from typing import Any

from gem_envs.worlds.names import place_names
from gem_envs.worlds.tools.task import Goal, ToolTask
from gem_envs.worlds.tools.toolbox import CallError, Toolbox, function

__all__ = ["Todo", "TodoTools"]

_PROJECTS = ("Garden", "Household", "Office", "School", "Sports", "Travel")
_VERBS = ("Book", "Check", "Clean", "Order", "Plan", "Prepare", "Repair", "Review", "Sort", "Write")
_THINGS = (
    "bicycle",
    "budget",
    "cupboard",
    "essay",
    "flat",
    "garage",
    "invoice",
    "meeting",
    "report",
)
_LAST_DRAWN_ID = 7000
"""Projects and tasks of the episode's data have ids up to this one, added tasks have higher ids."""
_HINTS = ("bring the blue folder", "ask for a receipt", "take photos first", "call before noon")


class TodoTools(Toolbox):
    """Projects with tasks, which a model must look up by their ids."""

    def __init__(self, today: datetime.date, city: str) -> None:
        self.today, self.city = today, city
        self.projects: dict[str, dict[str, Any]] = {}
        self.tasks: dict[str, dict[str, Any]] = {}
        self.last_id = _LAST_DRAWN_ID

    def state(self) -> Any:
        """Return the data without the ids of added tasks, which depend on deleted ones."""
        drawn = {id: task for id, task in self.tasks.items() if int(id) <= _LAST_DRAWN_ID}
        added = [task for id, task in self.tasks.items() if id not in drawn]
        return {"projects": self.projects, "tasks": drawn, "added": sorted(added, key=str)}

    def _project(self, project_id: str) -> dict[str, Any]:
        if project_id not in self.projects:
            raise CallError(f"there is no project with the id {project_id[:20]!r}")
        return self.projects[project_id]

    def _task(self, task_id: str) -> dict[str, Any]:
        if task_id not in self.tasks:
            raise CallError(f"there is no task with the id {task_id[:20]!r}")
        return self.tasks[task_id]

    def tasks_of(self, project_id: str) -> dict[str, dict[str, Any]]:
        """Return the tasks of a project by id."""
        return {id: t for id, t in self.tasks.items() if t["project_id"] == project_id}

    @function("the user's current date, YYYY-MM-DD")
    def get_user_current_date(self) -> str:
        return self.today.isoformat()

    @function("the user's current city")
    def get_user_current_location(self) -> str:
        return self.city

    @function("all projects: id, name, is_favorite")
    def get_projects(self) -> list[dict[str, Any]]:
        return [{"id": id, **project} for id, project in self.projects.items()]

    @function("marks a project as a favorite or not")
    def update_project(self, project_id: str, is_favorite: bool) -> dict[str, Any]:
        self._project(project_id)["is_favorite"] = is_favorite
        return {"id": project_id, **self.projects[project_id]}

    @function("the tasks of a project: id, content, is_completed, priority (4 is urgent), due_date")
    def get_tasks(self, project_id: str) -> list[dict[str, Any]]:
        self._project(project_id)
        keys = ("content", "is_completed", "priority", "due_date")
        return [
            {"id": id, **{key: task[key] for key in keys}}
            for id, task in self.tasks_of(project_id).items()
        ]

    @function("the description of a task")
    def get_task_description(self, task_id: str) -> str:
        return str(self._task(task_id)["description"])

    @function("the duration of a task in minutes")
    def get_task_duration(self, task_id: str) -> int:
        return int(self._task(task_id)["duration"])

    @function("adds a task to a project; priority is 1 (normal) to 4 (urgent)")
    def add_task(
        self, project_id: str, content: str, priority: int, due_date: str
    ) -> dict[str, Any]:
        self._project(project_id)
        if not 1 <= priority <= 4:
            raise CallError("priority must be 1 to 4")
        due_date = _date(due_date)
        self.last_id += 1
        self.tasks[str(self.last_id)] = {
            "project_id": project_id,
            "content": content.strip(),
            "is_completed": False,
            "priority": priority,
            "due_date": due_date,
            "description": "",
            "duration": 0,
        }
        return {"id": str(self.last_id), "content": content.strip()}

    @function("marks a task as completed")
    def complete_task(self, task_id: str) -> str:
        self._task(task_id)["is_completed"] = True
        return f"{self.tasks[task_id]['content']} is completed."

    @function("changes the due date of a task")
    def update_task(self, task_id: str, due_date: str) -> str:
        self._task(task_id)["due_date"] = _date(due_date)
        return f"{self.tasks[task_id]['content']} is due on {due_date}."

    @function("deletes a task")
    def delete_task(self, task_id: str) -> str:
        content = self._task(task_id)["content"]
        del self.tasks[task_id]
        return f"{content} is deleted."

    @function("deletes a project and its tasks")
    def delete_project(self, project_id: str) -> str:
        name = self._project(project_id)["name"]
        for task_id in self.tasks_of(project_id):
            del self.tasks[task_id]
        del self.projects[project_id]
        return f"{name} is deleted."


def _date(text: str) -> str:
    try:
        return datetime.date.fromisoformat(text.strip()).isoformat()
    except ValueError:
        raise CallError("a date must be YYYY-MM-DD") from None


# Goals.

_Calls = list[tuple[str, dict[str, Any]]]


def _some_task(tools: TodoTools, rng: random.Random) -> tuple[str, Any, str, _Calls]:
    """Draw a task; return its id, the task, its project's name and the calls that find it."""
    id, task = rng.choice(list(tools.tasks.items()))
    project_id = task["project_id"]
    calls: _Calls = [("get_projects", {}), ("get_tasks", {"project_id": project_id})]
    return id, task, tools.projects[project_id]["name"], calls


def _some_project(tools: TodoTools, rng: random.Random) -> tuple[str, str, _Calls]:
    id, project = rng.choice(list(tools.projects.items()))
    return id, project["name"], [("get_projects", {})]


def _duration(tools: TodoTools, rng: random.Random) -> Goal:
    id, task, project, calls = _some_task(tools, rng)
    calls.append(("get_task_duration", {"task_id": id}))
    text = f"How many minutes does the task {task['content']} of the project {project} take?"
    return Goal(text, calls, task["duration"])


def _total_duration(tools: TodoTools, rng: random.Random) -> Goal:
    project_id, name, calls = _some_project(tools, rng)
    open_tasks = {
        id: task for id, task in tools.tasks_of(project_id).items() if not task["is_completed"]
    }
    calls.append(("get_tasks", {"project_id": project_id}))
    calls += [("get_task_duration", {"task_id": id}) for id in open_tasks]
    return Goal(
        f"How many minutes do the tasks of the project {name} that are not completed take in all?",
        calls,
        sum(task["duration"] for task in open_tasks.values()),
    )


def _next_due(tools: TodoTools, rng: random.Random) -> Goal:
    project_id, name, calls = _some_project(tools, rng)
    calls.append(("get_tasks", {"project_id": project_id}))
    first = min(tools.tasks_of(project_id).values(), key=lambda task: str(task["due_date"]))
    text = f"Which task of the project {name} has the earliest due date?"
    return Goal(text, calls, first["content"])


def _complete(tools: TodoTools, rng: random.Random) -> Goal:
    id, task, project, calls = _some_task(tools, rng)
    calls.append(("complete_task", {"task_id": id}))
    return Goal(f"Mark the task {task['content']} of the project {project} as completed.", calls)


def _postpone(tools: TodoTools, rng: random.Random) -> Goal:
    id, task, project, calls = _some_task(tools, rng)
    days = rng.randint(2, 12)
    due = datetime.date.fromisoformat(task["due_date"]) + datetime.timedelta(days=days)
    calls.append(("update_task", {"task_id": id, "due_date": due.isoformat()}))
    text = f"Postpone the task {task['content']} of the project {project} by {days} days."
    return Goal(text, calls)


def _delete_overdue(tools: TodoTools, rng: random.Random) -> Goal:
    project_id, name, calls = _some_project(tools, rng)
    calls += [("get_user_current_date", {}), ("get_tasks", {"project_id": project_id})]
    calls += [
        ("delete_task", {"task_id": id})
        for id, task in tools.tasks_of(project_id).items()
        if task["due_date"] < tools.today.isoformat()
    ]
    return Goal(f"Delete the tasks of the project {name} that were due before today.", calls)


def _add(tools: TodoTools, rng: random.Random) -> Goal:
    project_id, name, calls = _some_project(tools, rng)
    content, priority = f"Buy a new {rng.choice(_THINGS)}", rng.randint(1, 4)
    days = rng.randint(1, 9)
    due = (tools.today + datetime.timedelta(days=days)).isoformat()
    arguments = {
        "project_id": project_id,
        "content": content,
        "priority": priority,
        "due_date": due,
    }
    calls += [("get_user_current_date", {}), ("add_task", arguments)]
    return Goal(
        f'Add the task "{content}" with priority {priority} to the project {name}, due in {days} '
        "days.",
        calls,
    )


def _favorite(tools: TodoTools, rng: random.Random) -> Goal:
    project_id, name, calls = _some_project(tools, rng)
    calls.append(("update_project", {"project_id": project_id, "is_favorite": True}))
    return Goal(f"Make the project {name} a favorite.", calls)


class Todo(ToolTask):
    """A question about a to-do list, or a change of it; see `ToolTask`."""

    topic = "a to-do list"
    goals = (
        _duration,
        _total_duration,
        _next_due,
        _complete,
        _postpone,
        _delete_overdue,
        _add,
        _favorite,
    )

    def draw_toolbox(self, rng: random.Random) -> TodoTools:
        today = datetime.date(rng.randint(2015, 2024), rng.randint(1, 12), rng.randint(1, 28))
        tools = TodoTools(today, place_names(rng, 1)[0])
        contents = [f"{verb} the {thing}" for verb in _VERBS for thing in _THINGS]
        rng.shuffle(contents)
        ids = iter(rng.sample(range(1000, 6999), 60))
        for name in rng.sample(_PROJECTS, 4):
            project_id = str(next(ids))
            tools.projects[project_id] = {"name": name, "is_favorite": rng.random() < 0.3}
            count = rng.randint(3, 6)
            # Different days, so that the earliest due date is one task's.
            for days in rng.sample(range(-12, 25), count):
                tools.tasks[str(next(ids))] = {
                    "project_id": project_id,
                    "content": contents.pop(),
                    "is_completed": rng.random() < 0.3,
                    "priority": rng.randint(1, 4),
                    "due_date": (today + datetime.timedelta(days=days)).isoformat(),
                    "description": rng.choice(_HINTS),
                    "duration": 5 * rng.randint(1, 60),
                }
        return tools
