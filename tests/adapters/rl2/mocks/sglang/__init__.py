"""Mock of SGLang, which has no CPU build: the names that RL2 imports, over `sglang_server.py`."""
