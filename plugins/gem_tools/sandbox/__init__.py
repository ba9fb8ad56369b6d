"""Sandbox: runs programs a model wrote."""
