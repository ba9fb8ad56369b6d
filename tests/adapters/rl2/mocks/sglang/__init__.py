"""Mock of SGLang, which has no build for CPUs on the package index: the names RL2 imports, over `sglang_server.py`."""
