"""Solvers of MiniWoB++ tasks. They read the instruction and the page, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gem_envs.web.miniwob import MiniWoB

__all__ = ["SOLVERS"]

_QUOTED = re.compile(r'"([^"]+)"')
_DIALOG_CLOSES = {"x": "Close"}
"""The names of buttons that show a picture."""


def _submit(env: MiniWoB) -> str:
    return f"click [{env.numbers_of('button')[-1]}]"


def _ordinal(env: MiniWoB) -> int:
    """Return the position that the instruction names, such as 4 for "the 4th word"."""
    match = re.search(r"\b(\d+)(?:st|nd|rd|th)\b", env.instruction)
    assert match is not None
    return int(match[1])


def _click_only_button(env: MiniWoB) -> Iterator[str]:
    yield f"click [{env.numbers_of('button')[0]}]"


def _click_named_buttons(env: MiniWoB) -> Iterator[str]:
    """Click the buttons that the instruction names, in quotes or in capitals."""
    names = _QUOTED.findall(env.instruction) or re.findall(r"\b[A-Z]{2,}\b", env.instruction)
    for name in names:
        number = env.number_of(f"button '{_DIALOG_CLOSES.get(name, name)}'", "")
        yield f"click [{number}]"


def _click_tab(env: MiniWoB) -> Iterator[str]:
    match = re.fullmatch(r"Click on (Tab #\d)\.", env.instruction)
    assert match is not None
    number = env.number_of(f"link '{match[1]}'", "")
    yield f"click [{number}]"


def _select_and_submit(env: MiniWoB) -> Iterator[str]:
    match = re.fullmatch(r"Select (.*?)(?: from the list)? and click Submit\.", env.instruction)
    assert match is not None
    if lists := env.numbers_of("combobox"):
        yield f"select [{lists[0]}] [{match[1]}]"
    elif match[1] != "nothing":
        kind = "checkbox" if env.numbers_of("checkbox") else "radio"
        for name in match[1].split(", "):
            number = env.number_of(f"{kind} '{name}'", "")
            yield f"click [{number}]"
    yield _submit(env)


def _type_and_submit(env: MiniWoB) -> Iterator[str]:
    texts = _QUOTED.findall(env.instruction)
    for number, field in enumerate(env.numbers_of("textbox")):
        yield f"type [{field}] [{texts[min(number, len(texts) - 1)]}]"
    yield _submit(env)


def _answer_and_submit(answer: Callable[[MiniWoB], str]) -> Callable[[MiniWoB], Iterator[str]]:
    """Return a solver that types an answer into the last field."""

    def solve(env: MiniWoB) -> Iterator[str]:
        yield f"type [{env.numbers_of('textbox')[-1]}] [{answer(env)}]"
        yield _submit(env)

    return solve


def _changed_case(env: MiniWoB) -> str:
    (text,) = _QUOTED.findall(env.instruction)
    return str(text.upper() if "upper case" in env.instruction else text.lower())


def _word(env: MiniWoB) -> str:
    return re.sub(r"[^a-zA-Z]", "", env.outline.lines[1].split()[_ordinal(env) - 1])


def _skewed_text(env: MiniWoB) -> str:
    return env.outline.lines[1].replace(" ", "")


def _copy(env: MiniWoB) -> Iterator[str]:
    """Copy one of the texts in the fields into the empty field."""
    texts = re.findall(r"textbox '' = '(.*?)'(?= \[|$)", _page(env), re.MULTILINE)
    field = env.numbers_of("textbox")[texts.index("")]
    copied = [text for text in texts if text]
    text = copied[_ordinal(env) - 1] if len(copied) > 1 else copied[0]
    yield f"type [{field}] [{text}]"
    yield _submit(env)


def _sum(env: MiniWoB) -> str:
    match = re.search(r"(-?\d+) ([-+x]) (-?\d+) =", _page(env))
    assert match is not None
    a, b = int(match[1]), int(match[3])
    return str({"+": a + b, "-": a - b, "x": a * b}[match[2]])


def _unknown(env: MiniWoB) -> str:
    """Solve an equation of x and two numbers, with x first or second."""
    match = re.search(r"(x|-?\d+) ([-+]) (x|-?\d+) = (-?\d+)", _page(env))
    assert match is not None
    result, sign = int(match[4]), 1 if match[2] == "+" else -1
    if match[1] == "x":
        return str(result - sign * int(match[3]))
    return str(sign * (result - int(match[1])))


def _table(env: MiniWoB) -> dict[str, str]:
    return dict(line.split(" | ", 1) for line in env.outline.lines if " | " in line)


def _looked_up(env: MiniWoB) -> str:
    match = re.search(r"value of (.*) into", env.instruction)
    assert match is not None
    return _table(env)[match[1]]


def _look_up_two(env: MiniWoB) -> Iterator[str]:
    labels = [line.rstrip(":") for line in env.outline.lines if line.endswith(":")]
    table = _table(env)
    for field, label in zip(env.numbers_of("textbox"), labels, strict=True):
        yield f"type [{field}] [{table[label]}]"
    yield _submit(env)


def _focus(env: MiniWoB) -> Iterator[str]:
    number = _ordinal(env) if "input textbox" in env.instruction else 1
    yield f"click [{env.numbers_of('textbox')[number - 1]}]"


def _guess(env: MiniWoB) -> Iterator[str]:
    low, high = 0, 9
    while True:
        guess = (low + high) // 2
        yield f"type [{env.numbers_of('textbox')[0]}] [{guess}]"
        yield _submit(env)
        low, high = (guess + 1, high) if "higher" in _page(env) else (low, guess - 1)


def _generate(env: MiniWoB) -> Iterator[str]:
    match = re.search(r"(less|greater) than (\d+)|(odd|even) number", env.instruction)
    assert match is not None
    generate, submit = env.numbers_of("button")
    while True:
        yield f"click [{generate}]"
        number = int(env.outline.lines[1])
        if match[3]:
            fits = number % 2 == (match[3] == "odd")
        else:
            fits = number < int(match[2]) if match[1] == "less" else number > int(match[2])
        if fits:
            break
    yield f"click [{submit}]"


def _mark_odd_and_even(env: MiniWoB) -> Iterator[str]:
    numbers = [int(line) for line in env.outline.lines if re.fullmatch(r"-?\d+", line)]
    buttons = env.numbers_of("button")
    for position, number in enumerate(numbers):
        yield f"click [{buttons[2 * position + (number % 2 == 0)]}]"
    yield _submit(env)


def _buy_ticket(env: MiniWoB) -> Iterator[str]:
    minutes = [int(h) * 60 + int(m) for h, m in re.findall(r"(\d+)h (\d+)m", _page(env))]
    prices = [int(price) for price in re.findall(r"Book for \$(\d+)", _page(env))]
    values = minutes if "duration" in env.instruction else prices
    best = min if re.search("cheapest|shortest", env.instruction) else max
    yield f"click [{env.numbers_of('button')[values.index(best(values))]}]"


def _fill_form(env: MiniWoB) -> Iterator[str]:
    match = re.search(r"the (\d)\w\w radio .* \"(-?\d+)\" into the (\d)", env.instruction)
    assert match is not None
    yield f"click [{env.numbers_of('radio')[int(match[1]) - 1]}]"
    yield f"type [{env.numbers_of('textbox')[int(match[3]) - 1]}] [{match[2]}]"
    yield _submit(env)


def _search_engine(env: MiniWoB) -> Iterator[str]:
    (text,) = _QUOTED.findall(env.instruction)[:1]
    page, position = divmod(_ordinal(env) - 1, 3)
    yield f"type [{env.numbers_of('textbox')[0]}] [{text}]"
    yield f"click [{env.numbers_of('button')[0]}]"
    if page:
        number = env.number_of(f"link '{page + 1}'", "")
        yield f"click [{number}]"
    yield f"click [{env.numbers_of('link')[position]}]"


# Solvers that read the accessibility tree.


def _page(env: MiniWoB) -> str:
    """Return the page without its first line, the instruction."""
    return "\n".join(env.outline.lines[1:])


def _node(env: MiniWoB, role: str, name: str) -> int | None:
    """Return the number of a node with a name, without the instruction."""
    match = re.search(rf"\[(\d+)\] {role} '{re.escape(name)}'", _page(env))
    return None if match is None else int(match[1])


def _open_until(role: str, name_of: str) -> Callable[[MiniWoB], Iterator[str]]:
    """Return a solver that opens every `role` in turn until the quoted text appears."""

    def solve(env: MiniWoB) -> Iterator[str]:
        (text,) = _QUOTED.findall(env.instruction)
        for name in re.findall(rf"\] {role} '(.*?)'", _page(env)):
            if _node(env, name_of, text) is not None:
                break
            yield f"click [{_node(env, role, name)}]"
        yield f"click [{_node(env, name_of, text)}]"

    return solve


def _click_text(env: MiniWoB) -> Iterator[str]:
    (text,) = _QUOTED.findall(env.instruction)
    yield f"click [{_node(env, 'StaticText', text)}]"


def _find_contact(env: MiniWoB) -> Iterator[str]:
    match = re.fullmatch(r"Find (.*) in the contact .* their (.*)\.", env.instruction)
    assert match is not None
    field = {"phone number": "Phone:", "email": "Email:", "address": "Address:"}[match[2]]
    while _node(env, "heading", match[1]) is None:
        yield f"click [{_node(env, 'link', '>')}]"
    label = _node(env, "StaticText", field)
    assert label is not None
    yield f"click [{label + 1}]"


SOLVERS: dict[str, Callable[[MiniWoB], Iterator[str]]] = {
    "buy-ticket": _buy_ticket,
    "choose-list": _select_and_submit,
    "click-button": _click_named_buttons,
    "click-button-sequence": _click_named_buttons,
    "click-checkboxes": _select_and_submit,
    "click-checkboxes-large": _select_and_submit,
    "click-checkboxes-transfer": _select_and_submit,
    "click-collapsible-2-nodelay": _open_until("tab", "StaticText"),
    "click-dialog": _click_only_button,
    "click-dialog-2": _click_named_buttons,
    "click-link": _click_text,
    "click-option": _select_and_submit,
    "click-tab": _click_tab,
    "click-tab-2": _open_until("tab", "StaticText"),
    "click-test": _click_only_button,
    "click-test-2": _click_named_buttons,
    "click-test-transfer": _click_named_buttons,
    "copy-paste": _copy,
    "copy-paste-2": _copy,
    "enter-password": _type_and_submit,
    "enter-text": _type_and_submit,
    "enter-text-2": _answer_and_submit(_changed_case),
    "enter-text-dynamic": _type_and_submit,
    "find-word": _answer_and_submit(_word),
    "focus-text": _focus,
    "focus-text-2": _focus,
    "form-sequence-2": _fill_form,
    "generate-number": _generate,
    "guess-number": _guess,
    "login-user": _type_and_submit,
    "odd-or-even": _mark_odd_and_even,
    "phone-book": _find_contact,
    "read-table": _answer_and_submit(_looked_up),
    "read-table-2": _look_up_two,
    "search-engine": _search_engine,
    "simple-algebra": _answer_and_submit(_unknown),
    "simple-arithmetic": _answer_and_submit(_sum),
    "text-transform": _answer_and_submit(_skewed_text),
    "unicode-test": _click_named_buttons,
}
"""The solvers by task."""
