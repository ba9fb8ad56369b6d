"""Log tasks: counting, ranking and rotating."""

from __future__ import annotations

import random

from gem_envs.terminal.task import WORDS, TerminalTask, lines_file, pick

__all__ = ["KINDS"]


def count_errors(rng: random.Random) -> TerminalTask:
    """Count lines in several files."""
    level = rng.choice(("ERROR", "WARNING"))
    files, count = [], 0
    for service in rng.sample(WORDS, 4):
        lines = []
        for hour in range(rng.randint(15, 30)):
            drawn = rng.choice(("INFO", "INFO", "ERROR", "WARNING"))
            # One message contains the level as a word, which must not be counted.
            message = rng.choice(
                ("request served", f"no {level} seen", "cache flushed", "user logged in")
            )
            lines.append(f"2031-05-{rng.randint(1, 28):02} {hour % 24:02}:00 {drawn} {message}")
            count += drawn == level
        files.append(lines_file(f"logs/{service}.log", lines))
    return TerminalTask(
        "The files in ~/logs have a date, a time, a level and a message on each line. "
        f"Count the lines of the level {level} in all of them together "
        "and write the number, and nothing else, to ~/count.txt.",
        tuple(files),
        (("text", "count.txt", str(count)),),
        (f"cat logs/*.log | awk '$3 == \"{level}\"' | wc -l > count.txt",),
    )


def slow_requests(rng: random.Random) -> TerminalTask:
    """Rank paths by the sum of a column."""
    paths = [f"/{a}/{b}" for a, b in zip(pick(rng, 6), pick(rng, 6), strict=True)]
    lines, totals = [], dict.fromkeys(paths, 0)
    for n in range(80):
        path, status, ms = (
            rng.choice(paths),
            rng.choice((200, 200, 200, 404, 500)),
            rng.randint(1, 900),
        )
        lines.append(
            f"10.0.0.{rng.randint(1, 9)} [{n // 6:02}:{n % 60:02}] GET {path} {status} {ms}ms"
        )
        totals[path] += ms if status == 200 else 0
    best = sorted(paths, key=lambda path: (-totals[path], path))[:3]
    return TerminalTask(
        "Each line of ~/access.log has an address, a time, a method, a path, a status and a "
        "duration. Consider the requests with the status 200 only. Write the three paths with the "
        "largest sum of durations to ~/slow.txt, the largest first, as lines 'PATH SUM' with the "
        "sum in milliseconds without a unit. Equal sums are sorted by path.",
        (lines_file("access.log", lines),),
        (("text", "slow.txt", "\n".join(f"{path} {totals[path]}" for path in best)),),
        (
            "awk '$5 == 200 {s[$4] += $6} END {for (p in s) print p, s[p]}' access.log "
            "| sort -k2,2nr -k1,1 | head -3 > slow.txt",
        ),
    )


def rotate_logs(rng: random.Random) -> TerminalTask:
    """Compress and delete files by the date in their name."""
    month = rng.randint(2, 12)
    days = sorted(rng.sample(range(1, 29), 10))
    old, kept = days[3], days[6]
    dates = [f"2031-{month:02}-{day:02}" for day in days]
    oldest, newest = f"2031-{month:02}-{old:02}", f"2031-{month:02}-{kept:02}"
    after = [f"app-{d}.log" + (".gz" if d < newest else "") for d in dates if d >= oldest]
    packed = next(d for d in dates if oldest <= d < newest)
    return TerminalTask(
        f"The logs in ~/logs are called app-DATE.log. Delete those before {oldest}, and compress "
        f"those from {oldest} on but before {newest} with gzip, so that app-DATE.log becomes "
        "app-DATE.log.gz. Leave the others alone.",
        tuple(lines_file(f"logs/app-{date}.log", [f"log of {date}"]) for date in dates),
        (
            ("names", "logs", after),
            ("prints", f"zcat logs/app-{packed}.log.gz", f"log of {packed}"),
            ("text", f"logs/app-{newest}.log", f"log of {newest}"),
        ),
        (
            "cd logs; for f in *.log; do d=${f#app-}; d=${d%.log}; "
            f"if [[ $d < {oldest} ]]; then rm $f; elif [[ $d < {newest} ]]; then gzip $f; fi; done",
        ),
    )


def error_bursts(rng: random.Random) -> TerminalTask:
    """Count per minute over two log formats."""
    count: dict[str, int] = {}
    web, worker = [], []
    burst = f"{rng.randint(8, 17):02}:{rng.randint(0, 58):02}"
    times = [f"{rng.randint(8, 17):02}:{rng.randint(0, 59):02}" for _ in range(60)]
    for time in sorted(times + [burst] * 9):
        error = time == burst or rng.random() < 0.4
        second = rng.randint(0, 59)
        if rng.random() < 0.5:
            web.append(f"[2031-05-04 {time}:{second:02}] {'error' if error else 'info'}: web")
        else:
            level = "E" if error else rng.choice("IW")
            worker.append(f"2031-05-04T{time}:{second:02}Z {level} job {rng.choice(WORDS)} error=0")
        count[time] = count.get(time, 0) + error
    worst = max(count.values())
    minute = min(time for time in count if count[time] == worst)
    return TerminalTask(
        "~/logs/web.log has lines '[DATE TIME] LEVEL: message' with the level error or info; "
        "~/logs/worker.log has lines 'DATETTIMEZ LEVEL message' with the level E, W or I. "
        "All are of one day. Find the minute with the most errors in both logs together, "
        "the earliest if several have as many, and write 'HH:MM COUNT' to ~/worst.txt.",
        (lines_file("logs/web.log", web), lines_file("logs/worker.log", worker)),
        (("text", "worst.txt", f"{minute} {worst}"),),
        (
            "(grep '] error:' logs/web.log | cut -c13-17; "
            "awk '$2 == \"E\" {print substr($1, 12, 5)}' logs/worker.log) > minutes",
            "sort minutes | uniq -c | sort -k1,1nr -k2,2 | head -1 "
            "| awk '{print $2, $1}' > worst.txt; rm minutes; cat worst.txt",
        ),
    )


KINDS = {
    "CountErrors": count_errors,
    "SlowRequests": slow_requests,
    "RotateLogs": rotate_logs,
    "ErrorBursts": error_bursts,
}
