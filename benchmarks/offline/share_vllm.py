"""Change an installed vLLM 0.24, to let several programs share one GPU.

    python benchmarks/offline/share_vllm.py gpu/base
    SHARED_KV=2684354560 python benchmarks/gpu_curves.py run … --together

vLLM takes a share of the whole GPU, and raises if other programs use memory or take some while it
starts or sleeps. With SHARED_KV, the bytes of its key-value cache, it does not check that.
"""

from __future__ import annotations

import sys
from pathlib import Path

SET = '__import__("os").environ.get("SHARED_KV")'
CHANGES = {
    "utils.py": [
        (
            "if init_snapshot.free_memory < requested_memory:",
            f"if init_snapshot.free_memory < requested_memory and not {SET}:",
        )
    ],
    "gpu_worker.py": [
        (
            "if kv_cache_memory_bytes := self.cache_config.kv_cache_memory_bytes:",
            f"if kv_cache_memory_bytes := (int({SET} or 0) "
            "or self.cache_config.kv_cache_memory_bytes):",
        ),
        ("assert freed_bytes >= 0,", f"assert {SET} or freed_bytes >= 0,"),
    ],
}
"""Files in vllm/v1/worker, with their lines before and after."""


def change(site: Path) -> None:
    """Change the vLLM in a folder of packages; a second call changes nothing."""
    texts = {}
    for name, lines in CHANGES.items():
        path = site / "vllm" / "v1" / "worker" / name
        if not path.is_file():
            sys.exit(f"error: {path} is missing; give the folder that has vLLM 0.24")
        text = path.read_text(encoding="utf-8")
        for before, after in lines:
            if after not in text and text.count(before) != 1:
                sys.exit(f"error: {path} does not have the line {before!r}; expected vLLM 0.24")
            text = text if after in text else text.replace(before, after)
        texts[path] = text
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    change(Path(sys.argv[1]))
