"""A headless Chromium that tests control with the DevTools protocol, over pipes."""

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
ARGUMENTS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-pipe")
PATIENCE_S = 60


class Chromium:
    """One page in Chromium. `problems` are the errors of its scripts."""

    def __init__(self, profile: Path) -> None:
        # Chromium reads from descriptor 3 and writes to descriptor 4.
        ours, theirs = os.pipe(), os.pipe()
        self._write, self._read = os.fdopen(ours[1], "wb", 0), os.fdopen(theirs[0], "rb", 0)
        shell = f'exec "$0" "$@" 3<&{ours[0]} 4>&{theirs[1]}'
        command = ["bash", "-c", shell, str(BROWSER), *ARGUMENTS, f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(command, pass_fds=(ours[0], theirs[1]), stderr=subprocess.DEVNULL)
        os.close(ours[0])
        os.close(theirs[1])
        self._number, self._buffer, self._session = 0, b"", ""
        self.problems: list[str] = []
        target = self._send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._send(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with suppress(OSError):
            self._send("Browser.close")
        self._process.kill()
        self._process.wait()
        self._write.close()
        self._read.close()

    def open(self, address: str, width: int = 1280, height: int = 900, theme: str = "light") -> None:
        self.look(width, height, theme)
        self._send("Page.navigate", url=address)

    def look(self, width: int, height: int, theme: str) -> None:
        """Set the size of the page in pixels, and the theme, light or dark."""
        self._send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self._send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])

    def value(self, script: str) -> Any:
        """Return the value of a JavaScript expression, which must be valid JSON."""
        answer = self._send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait(self, script: str, until: Callable[[Any], bool] = bool) -> Any:
        """Return the value of an expression as soon as `until` returns True for the value."""
        give_up = time.monotonic() + PATIENCE_S
        while not until(found := self.value(script)):
            assert time.monotonic() < give_up, f"{script} is {found!r}; {self.problems}"
            time.sleep(0.05)
        return found

    def mouse(self, kind: str, x: float, y: float, buttons: int = 0) -> None:
        """Send an event of the pointer: mouseMoved, mousePressed or mouseReleased."""
        pressed = {} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}
        self._send("Input.dispatchMouseEvent", type=kind, x=x, y=y, buttons=buttons, **pressed)

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """Write the window, or the whole page, as a PNG file."""
        answer = self._send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))

    def _send(self, method: str, **values: Any) -> dict[str, Any]:
        self._number += 1
        session = {"sessionId": self._session} if self._session else {}
        message = {"id": self._number, "method": method, "params": values} | session
        self._write.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return dict(answer["result"])
            self._record_problem(answer)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            part = os.read(self._read.fileno(), 1 << 16)
            assert part, "Chromium has ended"
            self._buffer += part
        text, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(text))

    def _record_problem(self, event: dict[str, Any]) -> None:
        if event["method"] == "Runtime.exceptionThrown":
            self.problems.append(str(event["params"]["exceptionDetails"])[:500])
        if event["method"] == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
            self.problems.append(str(event["params"]["entry"])[:500])
