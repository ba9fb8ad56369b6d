"""Hostile episodes: text that tries to break out of an HTML page, in every field."""

from __future__ import annotations

from gem_core import Episode, Failure, FinishReason, Message, StopReason, Turn, TurnStatus

__all__ = ["HOSTILE", "hostile_episodes"]

HOSTILE = (
    '</script><script>window.hacked=1;document.title="hacked"</script>',
    '<img src=x onerror="window.hacked=1">',
    "--><svg onload=window.hacked=1>",
    "</style><style>body{display:none}</style>",
    "<iframe srcdoc='<script>parent.hacked=1</script>'></iframe>",
    "<a href=javascript:window.hacked=1>click</a>",
    "{{DATA}}{{SCRIPT}}",
    '"]\n["e",{"n":0}]',
    "${window.hacked=1}`",
    "\u2028\u2029 \udc80 \u202e \u0007",
)


def hostile_episodes() -> list[Episode]:
    """Return a terminated episode with token ids, and a failed one."""
    text = "\n".join(HOSTILE)
    call = Turn(
        (Message("system", text), Message("user", text)),
        text,
        0.5,
        added_ids=(1, 2, 3),
        restarted=True,
        action_ids=(4, 5, 6, 7),
        logprobs=(-0.01, -0.5, -2.0, -9.0),
        info={
            "use_tool": True,
            "tool_calls": [{"name": text, "error": True}],
            "tool_error": True,
            text: text,
        },
    )
    answer = Turn(
        (Message("tool", text),),
        text,
        1.0,
        added_ids=(8, 9),
        action_ids=(10, 11),
        logprobs=(-0.2, -1.4),
        status=TurnStatus.MASKED,
        finish=FinishReason.LENGTH,
    )
    done = {"success": True, text: [text]}
    return [
        Episode(
            f"test:{HOSTILE[0]}",
            3,
            (call, answer),
            StopReason.TERMINATED,
            {text: text},
            text,
            "",
            text,
            done,
        ),
        Episode(
            HOSTILE[1], 4, (call,), StopReason.ENV_ERROR, failure=Failure(text, text, text, text)
        ),
    ]
