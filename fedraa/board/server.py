"""The board's HTTP server: read-only, on loopback, with a token in the address."""

import json
import secrets
import sys
from collections.abc import Mapping
from functools import cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from urllib.parse import parse_qs, urlsplit

from plotly.offline import get_plotlyjs

from fedraa.board.answers import ANSWERS
from fedraa.board.board import Board

LOOPBACK = "127.0.0.1"
# Only requests with these host names are answered. Requests from pages of other sites have other host names.
HERE = {LOOPBACK, "localhost"}
KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
SCRIPTS = ("main", "state", "elements", "list", "plot", "curves", "compare", "details")
PAGE = ("page.html", "page.css", *(f"{name}.js" for name in SCRIPTS))
HEADERS = {
    # Plotly needs inline styles, and blob URLs to save pictures.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    # The address contains the token, so it must not be sent to other servers.
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


class BoardServer(ThreadingHTTPServer):
    """An HTTP server for the board's page, at the URL `address`. Port 0 means any free port.

    Raises OSError if the port is in use.
    """

    # The process may end while threads serve browsers.
    daemon_threads = True
    # A browser requests all files of the page at the same time.
    request_queue_size = 64
    allow_reuse_port = False

    def __init__(self, board: Board, port: int) -> None:
        super().__init__((LOOPBACK, port), Handler)
        self.board, self.token = board, secrets.token_urlsafe(24)

    @property
    def address(self) -> str:
        return f"http://{LOOPBACK}:{self.server_port}/{self.token}/"

    def handle_error(self, request: object, client_address: object) -> None:
        """Report an error of a request. A connection that the browser has closed is no error."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            # The base class passes values outside its type hints.
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class Handler(BaseHTTPRequestHandler):
    """A handler of GET and HEAD requests. A path in a request never selects a file to open."""

    server: BoardServer
    protocol_version = "HTTP/1.1"
    server_version = "fedraa"
    sys_version = ""
    # Seconds without data, after which a connection is closed.
    timeout = 60

    # http.server requires this name.
    def do_GET(self) -> None:
        self._send_answer(*self._find_answer())

    # http.server requires this name.
    do_HEAD = do_GET  # noqa: N815

    def _find_answer(self) -> tuple[HTTPStatus, str, bytes]:
        """Return the status, the content type and the content of the answer to this request."""
        parts = urlsplit(self.path)
        token, slash, name = parts.path.removeprefix("/").partition("/")
        if not self._is_for_this_machine() or not secrets.compare_digest(token.encode(), self.server.token.encode()):
            return _text_answer(HTTPStatus.FORBIDDEN, "Open the address that fedraa board has printed.")
        if slash and name in ANSWERS:
            try:
                answer = ANSWERS[name](self.server.board, parse_qs(parts.query))
            except ValueError as error:
                return _text_answer(HTTPStatus.BAD_REQUEST, str(error))
            text = json.dumps(answer, separators=(",", ":"), allow_nan=False)
            return HTTPStatus.OK, "application/json", text.encode()
        file = name or PAGE[0]
        if slash and file in read_page_files():
            kind = KINDS[file.rpartition(".")[2]]
            return HTTPStatus.OK, f"{kind}; charset=utf-8", read_page_files()[file]
        return _text_answer(HTTPStatus.NOT_FOUND, "The board has no such page.")

    def _is_for_this_machine(self) -> bool:
        """Return True if the request's host name is this machine's. A tunnel may change the port."""
        hosts = self.headers.get_all("Host", [])
        return len(hosts) == 1 and hosts[0].partition(":")[0].lower() in HERE

    def _send_answer(self, status: HTTPStatus, kind: str, content: bytes) -> None:
        self.send_response(status)
        for header, value in HEADERS.items():
            self.send_header(header, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing about requests, so that the page's address stays visible in the terminal."""


def _text_answer(status: HTTPStatus, text: str) -> tuple[HTTPStatus, str, bytes]:
    return status, "text/plain; charset=utf-8", f"{text}\n".encode()


@cache
def read_page_files() -> Mapping[str, bytes]:
    """Return the content of the page's files by name, including Plotly's script."""
    folder = files("fedraa.board").joinpath("page")
    own = {name: folder.joinpath(name).read_bytes() for name in PAGE}
    return own | {"plotly.js": get_plotlyjs().encode()}
