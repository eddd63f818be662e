"""The server of the explorer: this machine alone, one secret address, questions but no commands."""

from __future__ import annotations

import contextlib
import json
import secrets
import sys
import threading
import webbrowser
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from ..errors import InvalidInputError, NotSoDeepError
from .controls import settings_from
from .document import page
from .sections import SECTIONS

_LONGEST = 2048  # characters of an address
_POLICY = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Explorer(ThreadingHTTPServer):
    """Answers the page on a free port of 127.0.0.1, to those who know its address.

    Sections that need a twin wait for each other, and the others do: a slow twin keeps nobody waiting for an accuracy.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.token = secrets.token_urlsafe(24)
        self.hosts = {f"{name}:{self.server_port}" for name in ("127.0.0.1", "localhost")}
        self.lanes = {True: threading.Lock(), False: threading.Lock()}
        self.text = page()

    @property
    def address(self) -> str:
        """The address of the page, with its token."""
        return f"http://127.0.0.1:{self.server_port}/{self.token}/"

    def section(self, query: str) -> Any:
        """Return the document of the section that a query asks for."""
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=40)
        given = dict(pairs)
        if len(given) < len(pairs):
            raise InvalidInputError("a setting is given twice; give each of them once")
        name = given.pop("section", "")
        for section in SECTIONS:
            if section.name == name:
                settings = settings_from(given, section.needs)
                with self.lanes[section.slow]:
                    return section.build(settings)
        raise InvalidInputError(f"section is one of {', '.join(s.name for s in SECTIONS)}; got {name[:40]!r}")

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of browsers that hang up; other failures are shown as usual."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Request(BaseHTTPRequestHandler):
    """One request: who asks is checked before what is asked."""

    server: Explorer
    server_version, sys_version = "notsodeep", ""
    timeout = 20  # seconds that a client may take to say what it wants

    def do_GET(self) -> None:
        """Answer the page, or the numbers of a section."""
        if (refused := self._refusal()) is not None:
            self.send_error(*refused)
            return
        path, query = urlsplit(self.path)[2:4]
        if path == f"/{self.server.token}/":
            self._send(200, "text/html; charset=utf-8", self.server.text)
        elif path == f"/{self.server.token}/numbers":
            self._numbers(query)
        else:
            self.send_error(404, "there is nothing here; open the address that the command printed")

    def _refusal(self) -> tuple[int, str] | None:
        """Return why this client gets no answer."""
        host, origin = self.headers.get("Host", ""), self.headers.get("Origin")
        if host not in self.server.hosts:
            return 403, f"this server answers 127.0.0.1 alone, not {host[:60]!r}"
        if origin is not None and origin != f"http://{host}":
            return 403, f"another page, {origin[:60]!r}, may not ask this server"
        if self.headers.get("Content-Length", "0") != "0" or self.headers.get("Transfer-Encoding"):
            return 413, "a question has no body"
        if len(self.path) > _LONGEST:
            return 414, f"an address has at most {_LONGEST} characters"
        try:
            given = urlsplit(self.path).path.split("/")[1:2]
        except ValueError:  # as of http://[
            return 400, "this is no address"
        if not given or not secrets.compare_digest(given[0].encode(), self.server.token.encode()):
            return 403, "the address lacks its secret; open the one that the command printed"
        return None

    def _numbers(self, query: str) -> None:
        try:
            self._send_json(200, self.server.section(query))
        except ValueError as error:  # wrong settings, and networks that have no such numbers
            self._send_json(400, {"error": str(error)})
        except NotSoDeepError as error:
            self._send_json(500, {"error": str(error)})
        except Exception:  # a defect: the page goes on, and the terminal shows the trace
            self.server.handle_error(self.request, self.client_address)
            self._send_json(500, {"error": "this failed unexpectedly; the terminal shows where"})

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer a failure as JSON, whatever was asked for."""
        if code == 501:  # what the base class says of methods that have no function here
            code, message = 405, f"this server answers GET alone, not {str(self.command)[:20]}"
        self.close_connection = True
        self._send_json(code, {"error": message or "the request was not understood"})

    def _send_json(self, code: int, document: Any) -> None:
        self._send(code, "application/json", json.dumps(document, allow_nan=False))

    def _send(self, code: int, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(code)
        for name, value in ({"Content-Type": kind, "Content-Length": str(len(body))} | _POLICY).items():
            self.send_header(name, value)
        if code == 405:
            self.send_header("Allow", "GET")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Keep the terminal quiet."""


def serve(say: Callable[[str], object] = print, *, open_browser: bool = True) -> None:
    """Serve the explorer until it is interrupted.

    Parameters
    ----------
    say : callable
        Gets the lines that tell the user where the page is.
    open_browser : bool
        Whether the page is opened in the user's browser.
    """
    with Explorer() as server, contextlib.suppress(KeyboardInterrupt):
        opened = open_browser and webbrowser.open(server.address)
        say(f"{'opened' if opened else 'open this in your browser:'} {server.address}")
        say("Python answers the page from this terminal; end with Ctrl-C")
        server.serve_forever()
