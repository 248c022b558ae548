"""The board's server: it listens on loopback, requires the token, answers known names, and never writes."""

import json
import re
import shutil
import socket
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from fedraa.board.board import Board
from fedraa.board.server import PAGE, BoardServer, read_page_files
from fedraa.report.theme import DARK, LIGHT, Theme

FOLDER = Path(__file__).parents[3] / "fedraa" / "board" / "page"


@pytest.fixture(scope="module")
def server(sample_runs: Path) -> Iterator[BoardServer]:
    board = Board(sample_runs)
    board.read_files()
    while board.read_logs():
        pass
    board.read_files()
    served = BoardServer(board, 0)
    thread = Thread(target=served.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield served
    served.shutdown()
    thread.join()
    served.server_close()


def ask(server: BoardServer, path: str, method: str = "GET", **headers: str) -> tuple[int, bytes, dict[str, str]]:
    connection = HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    reply = answer.status, answer.read(), dict(answer.getheaders())
    connection.close()
    return reply


def json_of(server: BoardServer, path: str) -> Any:
    status, content, headers = ask(server, f"/{server.token}/{path}")
    assert status == 200, content
    assert headers["Content-Type"] == "application/json"
    return json.loads(content)


def test_server_listens_only_on_loopback(server: BoardServer) -> None:
    assert server.socket.getsockname()[0] == "127.0.0.1"
    assert re.fullmatch(rf"http://127\.0\.0\.1:{server.server_port}/[\w-]{{32}}/", server.address)


@pytest.mark.parametrize("path", ["/", "/x/", "/{half}/", "/{token}x/runs", "/é/", "/%2e%2e/{token}/"])
def test_request_without_token_is_forbidden(server: BoardServer, path: str) -> None:
    path = path.replace("{half}", server.token[:16]).replace("{token}", server.token)
    # A client of the standard library would normalise the path.
    with socket.create_connection(("127.0.0.1", server.server_port)) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        reply = connection.makefile("rb").read()
    assert reply.startswith(b"HTTP/1.1 403 ")
    assert reply.endswith(b"\r\n\r\nOpen the address that fedraa board has printed.\n")
    assert server.token.encode() not in reply


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "0.0.0.0", "[::1]", ""])
def test_request_with_another_host_name_is_forbidden(server: BoardServer, host: str) -> None:
    """A foreign page with a host name that resolves to this machine sends its own host name."""
    assert ask(server, f"/{server.token}/runs", Host=host)[0] == 403


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9", "127.0.0.1:8000"])
def test_request_through_another_local_port_is_accepted(server: BoardServer, host: str) -> None:
    assert ask(server, f"/{server.token}/runs", Host=host)[0] == 200


@pytest.mark.parametrize(
    "name",
    [
        "../../../../etc/passwd",
        "%2e%2e/%2e%2e/etc/passwd",
        "..%2f..%2fetc%2fpasswd",
        "/etc/passwd",
        "fed-raa-ended/config.json",
        "server.py",
        "__init__.py",
        "page",
    ],
)
def test_path_of_any_other_file_is_not_found(server: BoardServer, name: str) -> None:
    assert ask(server, f"/{server.token}/{name}")[:2] == (404, b"The board has no such page.\n")


def test_run_name_is_never_a_path(server: BoardServer) -> None:
    for name in ("../../../..", "/etc", "fed-raa-ended/../fed-raa-ended", "\x00"):
        assert json_of(server, f"details?run={name!a}".replace(" ", "")) is None
        assert json_of(server, "curves?y=accuracy&run=%2e%2e") == {"curves": []}


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_server_rejects_methods_that_write(server: BoardServer, method: str) -> None:
    assert ask(server, f"/{server.token}/runs", method)[0] == 501


def test_answers_are_json(server: BoardServer) -> None:
    reply = json_of(server, "runs?since=0")
    assert reply["ids"] == ["fed-raa-ended", "fed-raa-stopped", "scaffold-stopped"]
    assert [row["id"] for row in reply["rows"]] == reply["ids"]
    assert (reply["read"], reply["searched"]) == (reply["size"], True)
    assert json_of(server, f"runs?since={reply['version']}")["rows"] == []
    (curve,) = json_of(server, "curves?run=fed-raa-ended&run=gone&x=t&y=loss")["curves"]
    assert curve["id"] == "fed-raa-ended"
    assert json_of(server, "comparison?run=fed-raa-ended")["commands"]
    whole = json_of(server, "details?run=fed-raa-ended")["timeline"]
    part = json_of(server, "details?run=fed-raa-ended&from=0.01&to=0.02")["timeline"]
    assert 0 < part["tasks"] < whole["tasks"]
    assert max(part["bars"]["start"]) < 0.02


@pytest.mark.parametrize("query", ["runs?since=x", "curves?x=z", "details?run=fed-raa-ended&from=soon"])
def test_wrong_query_is_a_bad_request(server: BoardServer, query: str) -> None:
    status, content, _ = ask(server, f"/{server.token}/{query}")
    assert status == 400
    assert content.count(b"\n") == 1


def test_page_has_headers_that_forbid_other_servers(server: BoardServer) -> None:
    status, content, headers = ask(server, f"/{server.token}/")
    assert status == 200
    assert b"<title>fedraa board</title>" in content
    assert headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self';")
    assert "unsafe-eval" not in headers["Content-Security-Policy"]
    assert (headers["Referrer-Policy"], headers["X-Content-Type-Options"]) == ("no-referrer", "nosniff")
    head = ask(server, f"/{server.token}/", "HEAD")
    assert (head[0], head[1]) == (200, b"")
    assert head[2]["Content-Length"] == str(len(content))


def test_every_file_of_the_page_is_served(server: BoardServer) -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(PAGE)
    text = "\n".join(path.read_text() for path in FOLDER.iterdir())
    named = set(re.findall(r'(?:href|src)="([^"#:]+)"', text)) | set(re.findall(r'from "\./([^"]+)"', text))
    assert {"main.js", "plot.js", "page.css"} <= named <= set(read_page_files())
    assert re.findall(r"https?://(?!www\.w3\.org/2000/svg)[^\s\"']*", text) == []
    for name in (*PAGE, "plotly.js"):
        assert ask(server, f"/{server.token}/{name}")[0] == 200
    assert len(read_page_files()["plotly.js"]) > 1_000_000


@pytest.mark.parametrize(("place", "theme"), [(0, LIGHT), (1, DARK)])
def test_page_colours_equal_the_report_colours(place: int, theme: Theme) -> None:
    block = re.findall(r":root \{(.*?)\}", (FOLDER / "page.css").read_text(), re.DOTALL)[place]
    colours = dict(re.findall(r"--(\w+): (#\w+);", block))
    wanted = {"ink": theme.ink, "faint": theme.faint, "grid": theme.grid, "paper": theme.paper}
    assert colours.items() >= (wanted | {f"c{i}": colour for i, colour in enumerate(theme.palette)}).items()


def test_board_without_runs_answers_with_no_rows(tmp_path: Path) -> None:
    from fedraa.board.answers import list_runs

    board = Board(tmp_path)
    board.read_files()
    reply = list_runs(board, {})
    assert (reply["ids"], reply["rows"], reply["searched"]) == ([], [], True)
    shutil.rmtree(tmp_path)
    board._next_search = 0
    board.read_files()
