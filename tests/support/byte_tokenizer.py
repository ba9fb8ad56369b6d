"""ByteTokenizer: a tokenizer in pure Python for tests.

Bytes are ids 0 to 255; special tokens have higher ids. As with real tokenizers, a character may
have several ids, and a sequence may end in the middle of one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

START, END, BOS = "<|im_start|>", "<|im_end|>", "<|begin|>"
SPECIAL = {START: 256, END: 257, BOS: 258}
_NAMES = {id: text for text, id in SPECIAL.items()}
_SPLIT = re.compile("|".join(re.escape(text) for text in SPECIAL))
_THINKING = re.compile(r"<think>.*?</think>\n*", re.DOTALL)


class ByteTokenizer:
    """Implements the part of a transformers tokenizer that gem uses, with a chat template `style`:

    - `chatml`: accepts every role and rewrites nothing;
    - `thinking`: drops the thinking of assistant messages before the last user message (Qwen3);
    - `no_system`: rejects system and tool messages (Gemma);
    - `trims`: strips the content of messages (Llama 3);
    - `alternating`: rejects two consecutive messages of one role (Mistral);
    - `none`: no chat template (a base model).
    """

    eos_token_id = SPECIAL[END]
    all_special_ids = sorted(SPECIAL.values())

    def __init__(self, style: str = "chatml") -> None:
        self.style = style
        self.chat_template = None if style == "none" else style
        self.calls = 0

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        ids = [SPECIAL[BOS]] if add_special_tokens else []
        position = 0
        for special in _SPLIT.finditer(text):
            ids += text[position : special.start()].encode()
            ids.append(SPECIAL[special[0]])
            position = special.end()
        return ids + list(text[position:].encode())

    def decode(
        self, token_ids: Iterable[int], *, skip_special_tokens: bool = False, **settings: bool
    ) -> str:
        parts: list[bytes] = []
        for id in token_ids:
            name = _NAMES[id].encode() if id > 255 else b""
            parts.append(bytes([id]) if id < 256 else b"" if skip_special_tokens else name)
        return b"".join(parts).decode(errors="replace")

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, str]],
        *,
        tokenize: bool = False,
        add_generation_prompt: bool = False,
        **kwargs: Any,
    ) -> str:
        assert not tokenize
        self.calls += 1
        last_user = max((i for i, m in enumerate(conversation) if m["role"] == "user"), default=-1)
        text = BOS
        for i, message in enumerate(conversation):
            role, content = message["role"], message["content"]
            if self.style == "no_system" and role in ("system", "tool"):
                raise ValueError(f"the role {role} is not supported")
            if self.style == "alternating" and i and conversation[i - 1]["role"] == role:
                raise ValueError("roles must alternate")
            if self.style == "thinking" and role == "assistant" and i < last_user:
                content = _THINKING.sub("", content)
            if self.style == "trims":
                content = content.strip()
            text += f"{START}{role}\n{content}{END}\n"
        return text + f"{START}assistant\n" * add_generation_prompt
