"""HTTP handler of the environment server: parses requests, checks rights, and writes replies."""

from __future__ import annotations

import base64
import hmac
import json
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from gem_http.listener import Handler, is_loopback

from gem_core.errors import ActionTypeError, OptionError, ResetNeededError
from gem_envs.remote.sessions import HttpError

if TYPE_CHECKING:
    from gem_envs.remote.server import Server

__all__ = ["EnvHandler", "is_short_number"]

_LARGEST_BODY = 4 << 20
_MOST_DIGITS = 18
"""Python converts at most 4300 digits; a session has 15."""


class EnvHandler(Handler):
    """Handler of a connection to the environment server."""

    env_server: Server

    def _answer(self) -> None:
        """Answer the request."""
        try:
            body = self._body()
            self._reject_web_pages()
            self._check_token()
        except HttpError as error:
            return self._reply(error.status, {"error": str(error)})
        return self._reply(*self._result(body))

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = _answer  # noqa: N815 - http.server's names

    def _result(self, body: Any) -> tuple[int, Any]:
        store = self.env_server.store
        try:
            client = str(self.client_address[0])
            return 200, self.env_server.answer(self.command, self.path, body, client)
        except HttpError as error:
            return error.status, {"error": str(error)}
        except ResetNeededError as error:
            return 409, {"error": str(error)}
        except (ActionTypeError, OptionError) as error:
            return 400, {"error": str(error)}
        except BaseException as error:  # noqa: BLE001 - report any environment error to the client
            store.log_error(error, "%s %s failed", self.command, self.path)
            text = store.redactor.program_text(f"{type(error).__name__}: {error}")
            return 500, {"error": text}

    def _reply(self, status: int, data: Any) -> None:
        headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
        self.reply(status, "application/json", json.dumps(data).encode(), headers)

    def _body(self) -> Any:
        lengths = self.headers.get_all("Content-Length") or ["0"]
        size = int(lengths[0]) if len(lengths) == 1 and is_short_number(lengths[0]) else -1
        if not 0 <= size <= _LARGEST_BODY or "Transfer-Encoding" in self.headers:
            self.close_connection = True  # the unread body would be taken for the next request
            raise HttpError(
                413, f"the body must have a Content-Length of at most {_LARGEST_BODY} bytes"
            )
        if not size:
            return {}
        raw = self.read_body(size)
        if self.headers.get_content_type() != "application/json":
            # A web page can post a form to any local port, but it cannot post JSON.
            raise HttpError(415, "the body must be JSON; send Content-Type: application/json")
        try:
            body = json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise HttpError(400, f"the body is not JSON: {error}") from None
        if not isinstance(body, dict):
            raise HttpError(400, f"the body must be a JSON object; got {type(body).__name__}")
        return body

    def _reject_web_pages(self) -> None:
        """Reject requests from web pages in a browser on this machine.

        Such requests have an Origin, or a foreign Host name that resolves to this machine (DNS
        rebinding).
        """
        try:
            host = urlsplit(f"//{self.headers.get('Host') or ''}").hostname
        except ValueError:  # for example "[::1"
            host = ""
        local = host is None or is_loopback(host)
        listens_locally = is_loopback(urlsplit(self.env_server.url).hostname or "")
        if "Origin" in self.headers or (listens_locally and not local):
            raise HttpError(
                403,
                "requests from web pages are rejected: "
                "the request has an Origin or a foreign Host header",
            )

    def _check_token(self) -> None:
        token = self.env_server.token
        if token and not hmac.compare_digest(self._sent_token().encode(), token.encode()):
            raise HttpError(
                401,
                "this server needs its token: send the header 'Authorization: Bearer TOKEN', "
                "or use the URL http://gem:TOKEN@host:port",
            )

    def _sent_token(self) -> str:
        """Return the token of the request; clients send the password of a URL as Basic."""
        kind, _, value = (self.headers.get("Authorization") or "").strip().partition(" ")
        if kind.lower() == "bearer":
            return value.strip()
        if kind.lower() == "basic":
            try:
                return base64.b64decode(value.strip()).decode().partition(":")[2]
            except ValueError:  # not base64, or not UTF-8
                return ""
        return ""


def is_short_number(text: str) -> bool:
    """Whether a text is a non-negative integer of few digits."""
    return text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS
