"""Runs Python blocks one after another in one namespace, like a script; `snippets.py` starts it.

Each line on stdin is a block: its code, its page and line for tracebacks, and the file for what it
prints. The answer is a JSON string: the traceback, or an empty string.
"""

from __future__ import annotations

import json
import linecache
import os
import sys
import traceback
import types


def main() -> None:
    """Run blocks until stdin ends."""
    answers = os.fdopen(os.dup(1), "w")
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    sys.path[0] = os.getcwd()  # what `python script.py` would have
    for line in sys.stdin:
        request = json.loads(line)
        # Empty lines before the code give tracebacks the line numbers of the page.
        code = "\n" * (request["line"] - 1) + request["code"]
        name = f"{request['page']}:{request['line']}"
        linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
        output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.close(output)
        error = ""
        try:
            exec(compile(code, name, "exec"), module.__dict__)
        except BaseException:  # noqa: BLE001 - reported to the test
            error = traceback.format_exc()
        sys.stdout.flush()
        answers.write(json.dumps(error) + "\n")
        answers.flush()


main()
