"""Commands of this plugin."""
