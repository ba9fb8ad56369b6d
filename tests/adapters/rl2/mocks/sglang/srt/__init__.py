"""Part of the mock of SGLang."""
