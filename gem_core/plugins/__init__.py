"""Plugins: hook specifications, the plugin manager, entry points, catalogs and events."""
