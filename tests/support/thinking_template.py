"""Chat templates that rewrite earlier answers, as Qwen3's does with thinking."""

from __future__ import annotations

import shutil
from pathlib import Path

from gem_core.policies.tiny import tiny_model_path

__all__ = ["SHORTENING", "STRIPPING", "model_with_template"]

STRIPPING = (
    "{% for message in messages %}"
    "{% set content = message['content'] %}"
    "{% if not loop.last and '</think>' in content %}"
    "{% set content = content.split('</think>')[-1] %}"
    "{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + content + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""Removes the thinking from all messages but the last."""

SHORTENING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{{ m.content if m.role != 'assistant' or loop.last else m.content[:1] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Keeps the first character of earlier answers, also of a model that does not think."""


def model_with_template(template: str, folder: Path) -> Path:
    """Copy the tiny model to a folder, with another chat template, and return the folder."""
    from transformers import AutoTokenizer

    shutil.copytree(tiny_model_path(), folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return folder
