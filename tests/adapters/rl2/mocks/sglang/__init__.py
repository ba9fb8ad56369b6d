"""Mock of SGLang: the names that RL2 imports, over `sglang_server.py` or `vllm_server.py`."""
