"""Episode viewer for the browser: a self-contained page, or a local server that follows a record.

The viewer treats model output as hostile and never inserts it as markup: a page holds it compressed
in base64, a server sends it as JSON, and the script renders it as text nodes only. As a second line
of defence, the content security policy only allows the viewer's own script, by its hash, and no
connection to other hosts.
"""

from __future__ import annotations

from gem_eval.viewer.page import page_of
from gem_eval.viewer.payload import Credit, Shelf
from gem_eval.viewer.server import ViewerServer
from gem_eval.viewer.title import title_of

__all__ = ["Credit", "Shelf", "ViewerServer", "page_of", "title_of"]
