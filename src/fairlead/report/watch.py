"""A small web server that shows the report while runs are in progress."""

from __future__ import annotations

import errno
import gzip
import hashlib
import ipaddress
import socket
import socketserver
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import monotonic
from typing import Any, cast

from fairlead.errors import FairleadError
from fairlead.report.html import render, to_json

Gather = Callable[[], Mapping[str, Any]]


def serve(
    gather: Gather,
    host: str = "127.0.0.1",
    port: int = 0,
    on_ready: Callable[[str], None] = print,
) -> None:
    """Serve what `gather` returns until Ctrl-C.

    port: 0 picks a free one; on_ready: called with the page's URL.
    """
    server = Server(gather, host, port)
    try:
        on_ready(server.url)
        server.run()
    except KeyboardInterrupt:
        pass
    finally:
        server.close()


class Server:
    """Serves the page on a local port; inside a `with` block, from its own thread.

    >>> from urllib.request import urlopen
    >>> with Server(lambda: {"title": "Three runs"}) as server:
    ...     with urlopen(f"{server.url}data.json") as answer:
    ...         print(answer.read().decode())
    {"title":"Three runs"}
    """

    def __init__(self, gather: Gather, host: str = "127.0.0.1", port: int = 0) -> None:
        self.host = host
        try:
            self._http = _Http(host, port, _Source(gather))
        except (OSError, OverflowError) as error:
            raise FairleadError(_failure(error, host, port)) from error

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._http.server_address[1]

    @property
    def url(self) -> str:
        """The page's URL."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{name}:{self.port}/"

    def run(self) -> None:
        """Serve until stopped from another thread or by Ctrl-C."""
        self._http.serve_forever(poll_interval=0.1)

    def start(self) -> Server:
        """Serve from a thread."""
        self._thread = threading.Thread(target=self.run, daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop the thread and release the port."""
        self._http.shutdown()
        self._thread.join()
        self.close()

    def close(self) -> None:
        """Release the port."""
        self._http.server_close()

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def _failure(error: Exception, host: str, port: int) -> str:
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return f"port {port} is in use: give another, or 0 for any free one"
    if isinstance(error, OverflowError):
        return f"port {port} does not exist: give one from 0 to 65535"
    reason = error.strerror if isinstance(error, OSError) and error.strerror else error
    return f"cannot listen on {host}, port {port}: {reason}"


@dataclass(frozen=True)
class _Answer:
    """The gathered data, or the error message."""

    data: Mapping[str, Any]
    error: str = ""

    @cached_property
    def body(self) -> bytes:
        if self.error or "made" not in self.data:
            return to_json({"error": self.error}).encode() if self.error else self._undated
        made = to_json({"made": self.data["made"]}).encode()
        return made if self._undated == b"{}" else made[:-1] + b"," + self._undated[1:]

    @cached_property
    def packed(self) -> bytes:
        return gzip.compress(self.body, 1)

    @cached_property
    def tag(self) -> str:
        """An ETag of the data without their timestamp."""
        return f'"{hashlib.sha256(self._undated).hexdigest()[:32]}"'

    @cached_property
    def _undated(self) -> bytes:
        return to_json({key: self.data[key] for key in self.data if key != "made"}).encode()


class _Source:
    """Gathers at most once per second, and less often if it is slow."""

    def __init__(self, gather: Gather) -> None:
        self.gather, self.lock = gather, threading.Lock()
        self.answer, self.until = _Answer({}), -1.0

    def get(self) -> _Answer:
        with self.lock:
            start = monotonic()
            if start >= self.until:
                self.answer = self._fresh()
                end = monotonic()
                self.until = end + max(1.0, 2 * (end - start))
            return self.answer

    def _fresh(self) -> _Answer:
        try:
            answer = _Answer(self.gather())
            if answer.tag == self.answer.tag and not self.answer.error:
                return self.answer  # unchanged: the compressed body is still valid
            return answer
        except FairleadError as error:
            return _Answer({}, str(error))
        except Exception as error:  # a folder in the middle of a write: the next try may succeed
            return _Answer(
                {}, f"the runs cannot be read right now: {error or type(error).__name__}"
            )


class _Http(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, host: str, port: int, source: _Source) -> None:
        self.source, self.host = source, host
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)  # without a DNS lookup
        self.server_name, self.server_port = self.host, self.server_address[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore closed connections."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    def knows(self, header: str) -> bool:
        """Whether a Host header names this server, which prevents DNS rebinding. Any IP address is fine
        when listening on all of them."""
        name = header.rsplit(":", 1)[0] if header.rsplit(":", 1)[-1].isdigit() else header
        name = name.strip("[]").lower()
        if name in ("localhost", "127.0.0.1", "::1", self.host.lower()):
            return True
        return self.host in ("0.0.0.0", "::") and _is_address(name)


def _is_address(name: str) -> bool:
    try:
        return bool(ipaddress.ip_address(name))
    except ValueError:
        return False


class _Handler(BaseHTTPRequestHandler):
    timeout = 20
    server_version, sys_version = "fairlead", ""

    def do_GET(self) -> None:
        path, server = self.path.split("?", 1)[0], cast(_Http, self.server)
        if not server.knows(self.headers.get("Host", "")):
            return self._text(403, "the Host header must name this server")
        if path not in ("/", "/data.json"):
            return self._text(404, "not found: this server has only / and /data.json")
        answer = server.source.get()
        if path == "/":
            page = render(answer.data, live=True, tag="" if answer.error else answer.tag)
            return self._send(200, "text/html; charset=utf-8", page.encode())
        if answer.error:
            return self._send(503, "application/json", answer.body)
        if self.headers.get("If-None-Match") == answer.tag:
            return self._send(304, "application/json", b"", answer.tag)
        return self._send(200, "application/json", answer.body, answer.tag, answer)

    def do_HEAD(self) -> None:
        self.do_GET()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Reject any other method with a plain-text message."""
        if code != HTTPStatus.NOT_IMPLEMENTED:
            return super().send_error(code, message, explain)
        return self._text(405, "this server is read-only: use GET or HEAD")

    def _text(self, status: int, message: str) -> None:
        self._send(status, "text/plain; charset=utf-8", f"{message}\n".encode())

    def _send(
        self, status: int, kind: str, body: bytes, tag: str = "", answer: _Answer | None = None
    ) -> None:
        zipped = "gzip" in self.headers.get("Accept-Encoding", "") and len(body) > 1000
        if zipped:
            body = answer.packed if answer else gzip.compress(body, 1)
        headers = {
            "Content-Type": kind, "Content-Length": str(len(body)), "Cache-Control": "no-cache",
            "Vary": "Accept-Encoding", "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY", "Cross-Origin-Resource-Policy": "same-origin",
            "Referrer-Policy": "no-referrer",
        }  # fmt: skip
        if zipped:
            headers["Content-Encoding"] = "gzip"
        if tag:
            headers["ETag"] = tag
        if status == 405:
            headers["Allow"] = "GET, HEAD"
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD" and status != 304:
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged."""
