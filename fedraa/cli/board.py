"""The command `fedraa board`: a live web page of the runs in a folder."""

from contextlib import suppress
from pathlib import Path

from fedraa.board.board import Board
from fedraa.board.server import BoardServer
from fedraa.cli.console import print_line
from fedraa.errors import InputError

PORTS = range(65536)


def serve_board(folder: Path, port: int) -> None:
    """Serve a live web page of the runs in `folder` until the user presses Ctrl-C.

    Raises InputError if the folder does not exist or the port cannot be used.
    """
    if port not in PORTS:
        raise InputError("port", got=port, expected=f"a number from 0 to {PORTS[-1]}; 0 takes any free port")
    watched = Board(folder)
    try:
        server = BoardServer(watched, port)
    except OSError as error:
        problem = f"the port cannot be used: {error.strerror}"
        raise InputError("port", problem, got=port, hint="give 0 for any free port") from None
    with suppress(KeyboardInterrupt):
        watched.start()
        print_line(f"{folder} is shown at {server.address} until you press Ctrl-C")
        server.serve_forever()
