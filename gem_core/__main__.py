"""The command `gem-rl`, also `python -m gem_core`."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Sequence

from gem_core._version import __version__
from gem_core.adapter_kit.declaration import adapters
from gem_core.cli import commands
from gem_core.env.registry import environments
from gem_core.errors import GemError

__all__ = ["main"]

INTERRUPTED = 130
"""Exit code after Ctrl-C, by shell convention."""
PIPE_CLOSED = 141
"""Exit code after the reader of the output, such as `head`, has exited."""

_COMPLETED: dict[object, Callable[..., object]] = {
    "ENV": lambda **_: environments.all(),
    "ADAPTER": lambda **_: adapters.all(),
}
"""What argcomplete offers for the arguments with these placeholders."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. A `GemError` prints one line, not a traceback."""
    try:
        parser = _parser()
        _complete(parser)
        args = parser.parse_args(argv)
        if "run" not in args:
            parser.print_help(sys.stderr)
            return 2
        code = int(args.run(args))
        sys.stdout.flush()
        return code
    except GemError as error:
        print(f"gem-rl: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # Python flushes stdout again at exit, which would raise the same error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gem-rl",
        description="Multi-turn text environments for the RL trainers you already use.",
        epilog=(
            "examples:\n"
            "  gem-rl envs maths\n"
            "  gem-rl play game:GuessTheNumber-v0-easy --random\n"
            "  gem-rl eval game:GuessTheNumber-v0-easy --model expert --seeds 20\n\n"
            "`gem-rl COMMAND --help` has more."
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"gem-rl {__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name, path in commands.all().items():
        module = importlib.import_module(path)
        examples = "\n".join(f"  {example}" for example in getattr(module, "EXAMPLES", ()))
        command = subparsers.add_parser(
            name,
            help=module.SUMMARY,
            description=f"{module.SUMMARY[0].upper()}{module.SUMMARY[1:]}.",
            epilog=f"examples:\n{examples}" if examples else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(command)
        for action in command._actions:
            if action.metavar in _COMPLETED:
                action.completer = _COMPLETED[action.metavar]  # type: ignore[attr-defined]
        command.set_defaults(run=module.run)
    return parser


def _complete(parser: argparse.ArgumentParser) -> None:
    """Answer a shell that asks for completions, which needs the extra `completion`."""
    if "_ARGCOMPLETE" not in os.environ:
        return
    import argcomplete

    argcomplete.autocomplete(parser)


if __name__ == "__main__":
    sys.exit(main())
