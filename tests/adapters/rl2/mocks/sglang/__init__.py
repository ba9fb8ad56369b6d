"""Stand-in for SGLang, which has no build for a CPU on the package index: the names RL2 imports, over `sglang_server.py`."""
