"""Triton on CPU: runs Triton's kernels, such as Liger's, in Triton's interpreter.

The interpreter lacks two things that Liger's kernels use: methods of float arguments, and
`libdevice`, a library of CUDA.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

__all__ = ["interpret_kernels", "run_liger_program"]


def interpret_kernels() -> None:
    """Interpret all kernels of this process. Call it before Triton is imported."""
    os.environ["TRITON_INTERPRET"] = "1"
    import numpy as np
    import triton.language as tl
    from triton.language.extra import libdevice
    from triton.runtime import interpreter

    convert = interpreter._implicit_cvt

    def convert_floats(argument: Any) -> Any:
        if not isinstance(argument, float):
            return convert(argument)
        handle = interpreter.TensorHandle(np.array([argument], dtype=np.float32), tl.float32)
        return tl.tensor(handle, tl.float32)

    interpreter._implicit_cvt = convert_floats
    # looked up at the call: the interpreter replaces the functions of `tl` while a kernel runs
    libdevice.rsqrt = lambda value: tl.math.rsqrt(value)


def run_liger_program(program: Path) -> None:
    """Run a program that uses Liger, with the import path of the tests; it must not fail."""
    pytest.importorskip("liger_kernel")
    folders = [folder for folder in sys.path if folder and not folder.endswith("mocks")]
    result = subprocess.run(
        [sys.executable, program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert result.returncode == 0, result.stderr[-4000:]
