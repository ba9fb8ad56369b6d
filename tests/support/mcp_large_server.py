"""An MCP server without the MCP package that returns results of any size, over stdio or HTTP.

`head`, `tail`, `sse`, `json`, `gzip` return `size` characters: as a line with the id before or
after the result; as an event, a body or a compressed body over HTTP. `small` returns "ok".
"""

from __future__ import annotations

import gzip
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOOLS = ("head", "tail", "sse", "json", "gzip", "small")
SCHEMA = {"type": "object", "properties": {"size": {"type": "integer"}}}


def result_of(request: dict[str, Any]) -> dict[str, Any]:
    params = request.get("params") or {}
    if request["method"] == "initialize":
        server = {"name": "large", "version": "1"}
        version = params["protocolVersion"]
        return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": server}
    if request["method"] == "tools/list":
        return {"tools": [{"name": name, "inputSchema": SCHEMA} for name in TOOLS]}
    if request["method"] == "tools/call":
        size = params.get("arguments", {}).get("size", 0)
        text = "ok" if params["name"] == "small" else '"id": 7}' * (size // 8)
        return {"content": [{"type": "text", "text": text}]}
    return {}  # ping


def response_to(request: dict[str, Any]) -> bytes:
    result = result_of(request)
    if tool_of(request) == "tail":
        return json.dumps({"result": result, "jsonrpc": "2.0", "id": request["id"]}).encode()
    return json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}).encode()


def tool_of(request: dict[str, Any]) -> str:
    return str((request.get("params") or {}).get("name", ""))


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if "id" not in request:
            self.send_response(202)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        body = response_to(request)
        self.send_response(200)
        if tool_of(request) == "sse":
            body = b"event: message\ndata: %s\n\n" % body
            self.send_header("Content-Type", "text/event-stream")
        else:
            self.send_header("Content-Type", "application/json")
        if tool_of(request) == "gzip":
            body = gzip.compress(body, 1)
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        try:
            self.wfile.write(body)
        except OSError:
            self.close_connection = True  # the client does not read all of it

    def do_GET(self) -> None:
        self.send_error(405)

    def log_message(self, *_: Any) -> None:
        pass


def main() -> None:
    if sys.argv[1:] == ["http"]:
        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        sys.stdout.write(f"{server.server_port}\n")
        sys.stdout.flush()
        server.serve_forever()
    for line in sys.stdin.buffer:
        request = json.loads(line)
        if "id" in request:
            sys.stdout.buffer.write(response_to(request) + b"\n")
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
