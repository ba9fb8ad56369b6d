"""Part of the stand-in for SGLang."""
