"""A comparison as `fedraa.compare` returns it: a table that notebooks show with what it says and its picture."""

import base64
from collections.abc import Callable
from html import escape
from pathlib import Path

import pandas as pd

from fedraa.report.runs import load
from fedraa.report.verdict import verdict

SUMMARISED = ("client_worst", "time", "steps", "staleness_mean")


class Comparison(pd.DataFrame):
    """One row per run; a notebook shows the words of a report, a row of means per method, and the curves."""

    _metadata = ["folder", "picture", "figure"]  # noqa: RUF012  # pandas wants a list on the class
    folder: Path
    picture: str
    figure: str

    @classmethod
    def of(cls, frame: pd.DataFrame, folder: Path, picture: str, figure: str) -> "Comparison":
        """`folder` has the runs and the file `picture`; `figure` is the column that they are judged by."""
        made = cls(frame)
        made.folder, made.picture, made.figure = folder, picture, figure
        return made

    @property
    def _constructor(self) -> Callable[..., pd.DataFrame]:
        return pd.DataFrame  # a part of it is a plain table

    @property
    def words(self) -> list[str]:
        """What the runs show, in paragraphs; none for a single method."""
        return verdict(load([self.folder]))

    def _repr_html_(self) -> str:
        paragraphs = "".join(f"<p>{escape(text)}</p>" for text in self.words)
        plain = pd.DataFrame(self)
        groups = plain.groupby("method", sort=False)
        columns = [name for name in (self.figure, *SUMMARISED) if name in plain.columns]
        table = groups[columns].mean().assign(seeds=groups.size()).to_html(float_format="{:.4g}".format)
        png = base64.b64encode((self.folder / self.picture).read_bytes()).decode()
        said = escape(f"{self.figure} over time")
        return f'{paragraphs}{table}<img alt="{said}" style="max-width: 100%" src="data:image/png;base64,{png}">'
