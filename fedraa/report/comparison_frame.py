"""The result of `fedraa.compare`, which notebooks show with a description and a plot."""

import base64
from collections.abc import Callable
from html import escape
from pathlib import Path

import pandas as pd

from fedraa.report.runs import load_groups
from fedraa.report.verdict import describe_comparison

SUMMARISED = ("client_worst", "time", "steps", "staleness_mean")


class Comparison(pd.DataFrame):
    """A table with one row per run.

    A notebook shows it as paragraphs, a table of means per method, and a plot.
    """

    # Pandas requires a list here. Ruff would require a tuple.
    _metadata = ["folder", "picture", "main_metric"]  # noqa: RUF012
    folder: Path
    picture: str
    main_metric: str

    @classmethod
    def of(cls, frame: pd.DataFrame, folder: Path, picture: str, main_metric: str) -> "Comparison":
        """Return the table as a Comparison.

        Args:
            frame: The table with one row per run.
            folder: The folder of the runs and of the plot's file.
            picture: The name of the plot's file.
            main_metric: The column with the main metric.
        """
        comparison = cls(frame)
        comparison.folder = folder
        comparison.picture = picture
        comparison.main_metric = main_metric
        return comparison

    @property
    def _constructor(self) -> Callable[..., pd.DataFrame]:
        # A slice of the comparison is an ordinary table.
        return pd.DataFrame

    @property
    def words(self) -> list[str]:
        """Return paragraphs about the result; an empty list for a single method."""
        return describe_comparison(load_groups([self.folder]))

    def _repr_html_(self) -> str:
        paragraphs = "".join(f"<p>{escape(text)}</p>" for text in self.words)
        plain = pd.DataFrame(self)
        groups = plain.groupby("method", sort=False)
        columns = [name for name in (self.main_metric, *SUMMARISED) if name in plain.columns]
        # A mean of only the seeds with a value would hide that the others diverged.
        means = groups[columns].agg(_mean_of_all)
        table = means.assign(seeds=groups.size()).to_html(float_format="{:.4g}".format)
        png = base64.b64encode((self.folder / self.picture).read_bytes()).decode()
        title = escape(f"{self.main_metric} over time")
        return f'{paragraphs}{table}<img alt="{title}" style="max-width: 100%" src="data:image/png;base64,{png}">'


def _mean_of_all(values: pd.Series) -> float:
    """Return the mean; NaN if a value is NaN."""
    return float(values.mean(skipna=False))
