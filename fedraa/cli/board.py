"""`fedraa board`: the live page of the runs in a folder, until Ctrl-C."""

from contextlib import suppress
from pathlib import Path

from fedraa.board.board import Board
from fedraa.board.server import BoardServer
from fedraa.cli.display import say

PORTS = range(65536)


def board(folder: Path, port: int) -> None:
    """Serve the page. ValueError, one sentence, for a folder that is not there or a port that cannot be had."""
    if port not in PORTS:
        raise ValueError(f"port: got {port}; it is a number from 0, any that is free, to {PORTS[-1]}")
    watched = Board(folder)
    try:
        server = BoardServer(watched, port)
    except OSError as error:
        raise ValueError(f"port: {port} cannot be had: {error.strerror}; 0 takes any that is free") from None
    with suppress(KeyboardInterrupt):
        watched.start()
        say(f"{folder} is shown at {server.address} until Ctrl-C")
        server.serve_forever()
