"""Viewer: episodes in a browser, as one self-contained page or from a server on this machine that follows a growing record.

What a model wrote is hostile until proven otherwise. It never stands in the page as markup: a page holds it compressed and in
base64, a server sends it as JSON, and the script puts it on the screen as text nodes only. Should that ever fail, the content
security policy allows no script but the viewer's own, by its hash, and no connection to anywhere else.
"""

from __future__ import annotations

from gem_eval.viewer.page import page_of
from gem_eval.viewer.payload import Credit, Shelf
from gem_eval.viewer.server import ViewerServer

__all__ = ["Credit", "Shelf", "ViewerServer", "page_of"]
