"""The event log: append-only JSON lines, and the tables read from it."""

import json
import time
from pathlib import Path

import pandas as pd

from fedraa.messages import Evaluation

EVENTS, EVALS, CONFIG, SUMMARY, MODEL = "events.jsonl", "evals.csv", "config.json", "summary.json", "model.pt"
EVAL_COLUMNS = ("step", "t", "wall", "accuracy", "loss", "client_mean", "client_std", "client_worst")


class EventLog:
    """Writes a run's events and evaluations, each line flushed as it comes.

    Every event has `seq`, `kind`, `t` (seconds on the run's clock) and `wall` (real seconds since the start).
    """

    def __init__(self, directory: Path) -> None:
        self._events = (directory / EVENTS).open("a", encoding="utf-8")
        self._evals = (directory / EVALS).open("a", encoding="utf-8")
        self._evals.write(",".join(EVAL_COLUMNS) + "\n")
        self._evals.flush()
        self._started = time.monotonic()
        self._seq = 0

    @property
    def wall(self) -> float:
        return time.monotonic() - self._started

    def record(self, kind: str, t: float, /, **fields: object) -> None:
        line = {"seq": self._seq, "kind": kind, "t": t, "wall": round(self.wall, 6), **fields}
        self._events.write(json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n")
        self._events.flush()
        self._seq += 1

    def evaluated(self, step: int, t: float, result: Evaluation) -> None:
        """An `eval` event and its row in evals.csv."""
        figures = {
            "accuracy": result.accuracy,
            "loss": result.loss,
            "client_mean": result.client_mean,
            "client_std": result.client_std,
            "client_worst": result.client_worst,
        }
        self.record("eval", t, step=step, **figures)
        row = [step, t, round(self.wall, 6), *figures.values()]
        self._evals.write(",".join(map(repr, row)) + "\n")
        self._evals.flush()

    def close(self) -> None:
        self._events.close()
        self._evals.close()


class History:
    """A finished (or interrupted) run, read from its directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        for name in (CONFIG, EVENTS, EVALS):
            if not (directory / name).is_file():
                raise ValueError(f"run: {directory} is not a run directory; it has no {name}")

    @property
    def config(self) -> dict[str, object]:
        return dict(json.loads((self.directory / CONFIG).read_text()))

    @property
    def summary(self) -> dict[str, object]:
        path = self.directory / SUMMARY
        if not path.is_file():
            raise ValueError(f"run: {self.directory} has no {SUMMARY}; the run has not ended")
        return dict(json.loads(path.read_text()))

    @property
    def events(self) -> pd.DataFrame:
        """One row per event; columns of other kinds are NaN."""
        return pd.DataFrame(self.lines())

    @property
    def evals(self) -> pd.DataFrame:
        return pd.read_csv(self.directory / EVALS, float_precision="round_trip")

    def lines(self) -> list[dict[str, object]]:
        """The events as they stand in the log; ValueError names the first line that is no event."""
        lines: list[dict[str, object]] = []
        with (self.directory / EVENTS).open(encoding="utf-8") as stream:
            for number, text in enumerate(stream, 1):
                try:
                    line = json.loads(text)
                except ValueError:
                    line = None
                if not isinstance(line, dict) or not {"seq", "kind", "t", "wall"} <= line.keys():
                    raise ValueError(f"events: line {number} of {self.directory / EVENTS} is not an event")
                lines.append(line)
        return lines
