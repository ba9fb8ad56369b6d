"""MCP server of a workplace: mail, calendar, files and a CRM over a SQLite database.

gem never imports it. Usage: workplace.py DATABASE.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from contextlib import closing
from typing import Any

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

ME = "me@acme.example"


def run(sql: str, *values: Any) -> list[dict[str, Any]]:
    """Run a statement and return its rows."""
    try:
        with closing(sqlite3.connect(sys.argv[1])) as database, database:
            database.execute("pragma synchronous = off")
            database.row_factory = sqlite3.Row
            return [dict(row) for row in database.execute(sql, values)]
    except sqlite3.Error as error:
        raise ToolError(str(error)) from error


def shown(rows: list[dict[str, Any]]) -> str:
    return "\n".join(json.dumps(row) for row in rows) or "(nothing found)"


def change(table: str, id: int, values: dict[str, Any]) -> str:
    """Set the given columns of a row."""
    if not run(f"select id from {table} where id = ?", id):
        raise ToolError(f"{table} has no entry with the id {id}")
    given = {name: value for name, value in values.items() if value is not None}
    for name, value in given.items():
        run(f"update {table} set {name} = ? where id = ?", value, id)
    return f"changed {', '.join(given) or 'nothing'}"


def search_mail(words: str = "", folder: str = "inbox") -> str:
    """List mails by words of the sender or subject; folders: inbox, sent, archive, trash."""
    pattern = f"%{words}%"
    return shown(
        run(
            "select id, sender, recipient, subject, day from mails where folder = ? "
            "and (sender like ? or subject like ?) order by id",
            folder,
            pattern,
            pattern,
        )
    )


def read_mail(id: int) -> str:
    """Show a mail with its body."""
    return shown(run("select * from mails where id = ?", id))


def send_mail(recipient: str, subject: str, body: str) -> str:
    """Send a mail to one address."""
    run(
        "insert into mails (folder, sender, recipient, subject, body, day) "
        "values ('sent', ?, ?, ?, ?, 0)",
        ME,
        recipient,
        subject,
        body,
    )
    return "sent"


def move_mail(id: int, folder: str) -> str:
    """Move a mail to a folder: inbox, archive or trash."""
    if folder not in ("inbox", "archive", "trash"):
        raise ToolError("the folder must be inbox, archive or trash")
    return change("mails", id, {"folder": folder})


def empty_trash() -> str:
    """Delete all mails in the folder trash."""
    run("delete from mails where folder = 'trash'")
    return "done"


def list_events(day: int | None = None) -> str:
    """List the events of a day, or all."""
    where = "" if day is None else f" where day = {int(day)}"
    return shown(run(f"select * from events{where} order by day, start"))


def create_event(title: str, day: int, start: int, minutes: int, attendees: list[str]) -> str:
    """Create an event; start is the hour, attendees are mail addresses."""
    people = ",".join(sorted(attendees))
    run(
        "insert into events (title, day, start, minutes, attendees) values (?, ?, ?, ?, ?)",
        title,
        day,
        start,
        minutes,
        people,
    )
    return "created"


def update_event(
    id: int, day: int | None = None, start: int | None = None, minutes: int | None = None
) -> str:
    """Change the day, the hour or the length of an event."""
    return change("events", id, {"day": day, "start": start, "minutes": minutes})


def delete_event(id: int) -> str:
    """Delete an event."""
    run("delete from events where id = ?", id)
    return "deleted"


def list_files() -> str:
    """List the files."""
    return shown(run("select id, name, shared_with from files order by id"))


def read_file(name: str) -> str:
    """Show the text of a file."""
    rows = run("select text from files where name = ?", name)
    return str(rows[0]["text"]) if rows else "(no such file)"


def write_file(name: str, text: str) -> str:
    """Create a file, or replace its text."""
    if run("select id from files where name = ?", name):
        run("update files set text = ? where name = ?", text, name)
    else:
        run("insert into files (name, text, shared_with) values (?, ?, '')", name, text)
    return "written"


def share_file(name: str, address: str) -> str:
    """Share a file with a mail address, in addition to those that have it."""
    rows = run("select shared_with from files where name = ?", name)
    if not rows:
        raise ToolError(f"there is no file {name}")
    people = {*filter(None, rows[0]["shared_with"].split(",")), address}
    run("update files set shared_with = ? where name = ?", ",".join(sorted(people)), name)
    return "shared"


def find_contacts(words: str = "") -> str:
    """List the contacts whose name, company or mail has the words."""
    pattern = f"%{words}%"
    sql = "select * from contacts where name like ? or company like ? or mail like ? order by id"
    return shown(run(sql, pattern, pattern, pattern))


def create_contact(name: str, mail: str, company: str, phone: str) -> str:
    """Create a contact; returns its id."""
    run(
        "insert into contacts (name, mail, company, phone) values (?, ?, ?, ?)",
        name,
        mail,
        company,
        phone,
    )
    return shown(run("select max(id) as id from contacts"))


def update_contact(
    id: int, mail: str | None = None, company: str | None = None, phone: str | None = None
) -> str:
    """Change the mail address, company or phone number of a contact."""
    return change("contacts", id, {"mail": mail, "company": company, "phone": phone})


def delete_contact(id: int) -> str:
    """Delete a contact."""
    run("delete from contacts where id = ?", id)
    return "deleted"


def list_deals(stage: str = "") -> str:
    """List the deals, or those of a stage: lead, offer, won or lost."""
    pattern = stage or "%"
    return shown(run("select * from deals where stage like ? order by id", pattern))


def create_deal(contact_id: int, title: str, value: int) -> str:
    """Create a deal in the stage lead."""
    run(
        "insert into deals (contact_id, title, value, stage) values (?, ?, ?, 'lead')",
        contact_id,
        title,
        value,
    )
    return "created"


def update_deal(id: int, value: int | None = None, stage: str | None = None) -> str:
    """Change the value or the stage (lead, offer, won or lost) of a deal."""
    return change("deals", id, {"value": value, "stage": stage})


def add_note(contact_id: int, text: str) -> str:
    """Add a note to a contact."""
    run("insert into notes (contact_id, text) values (?, ?)", contact_id, text)
    return "added"


def merge_all_contacts() -> str:
    """Merge contacts of the same company into one; this cannot be undone."""
    run("delete from contacts where id not in (select min(id) from contacts group by company)")
    return "merged"


TOOLS = (
    search_mail,
    read_mail,
    send_mail,
    move_mail,
    empty_trash,
    list_events,
    create_event,
    update_event,
    delete_event,
    list_files,
    read_file,
    write_file,
    share_file,
    find_contacts,
    create_contact,
    update_contact,
    delete_contact,
    list_deals,
    create_deal,
    update_deal,
    add_note,
    merge_all_contacts,
)


if __name__ == "__main__":
    server = MCPServer("workplace")
    for tool in TOOLS:
        server.tool()(tool)
    server.run()
