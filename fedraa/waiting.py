"""What is being done, said where it takes long: on a line that a terminal wipes again, and nowhere else."""

from threading import Lock, Timer
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.status import Status

PATIENCE = 2.0  # seconds that nothing need be said


class Waiting:
    """Says what is being done once all of it has taken `patience` seconds, until it is over."""

    def __init__(self, patience: float = PATIENCE) -> None:
        self._lock, self._doing, self._over = Lock(), "starting", False
        self._status: Status | None = None
        self._timer = Timer(patience, self._show)
        self._timer.daemon = True
        self._timer.start()

    def say(self, doing: str) -> None:
        """What is being done from now on."""
        with self._lock:
            self._doing = doing
            if self._status is not None:
                self._status.update(doing)

    def over(self) -> None:
        """There is nothing to wait for any more; the line is wiped."""
        self._timer.cancel()
        with self._lock:
            self._over = True
            if self._status is not None:
                self._status.stop()
                self._status = None

    def _show(self) -> None:
        with self._lock:
            console = Console()
            if not self._over and console.is_terminal and not console.is_jupyter:
                self._status = Status(self._doing, console=console)
                self._status.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.over()
