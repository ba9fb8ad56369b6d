"""A chat template that removes the thinking from all messages but the last, as Qwen3's does."""

from __future__ import annotations

__all__ = ["STRIPPING"]

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
