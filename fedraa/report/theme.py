"""The style of plots in a light and a dark theme."""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import matplotlib as mpl
import pandas as pd
from cycler import cycler
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# The width of a plot. It fits half of a page of 1200 pixels, a page of 400 pixels, or a column on paper.
WIDTH_INCHES = 4.7
SEQUENTIAL = "cividis"
# Colour-blind readers can distinguish the palette of Okabe and Ito. Its yellow is omitted, because it is too faint.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLES = ("-", "--", ":", "-.")
# Maximum number of characters in a row of a legend. An entry needs `KEY_CHARACTERS` besides its label.
LEGEND_CHARACTERS = 56
KEY_CHARACTERS = 6
# The metadata field with the date, by file format. It stays empty, so that equal plots have equal bytes.
DATES = {"svg": "Date", "pdf": "CreationDate"}
# A legend of `LEGEND_ROWS` rows fits into a figure. Each further row makes the figure taller.
LEGEND_ROWS = 2
LEGEND_ROW_INCHES = 0.19


@dataclass(frozen=True)
class Theme:
    """The colours of plots for a light or a dark background.

    The light theme has the colours `PALETTE`. The dark theme has lighter ones.
    """

    name: str
    ink: str
    faint: str
    grid: str
    paper: str
    palette: tuple[str, ...]

    @property
    def settings(self) -> dict[Any, Any]:
        """Return matplotlib's rcParams. `C0`, `C1`, ... are the colours of the palette."""
        return {
            "axes.prop_cycle": cycler(color=self.palette),
            "axes.edgecolor": self.faint,
            "axes.facecolor": self.paper,
            "axes.grid": True,
            "axes.axisbelow": True,
            "axes.labelcolor": self.ink,
            "axes.labelsize": 10,
            "axes.spines.right": False,
            "axes.spines.top": False,
            "axes3d.xaxis.panecolor": self.paper,
            "axes3d.yaxis.panecolor": self.paper,
            "axes3d.zaxis.panecolor": self.paper,
            "figure.facecolor": self.paper,
            "font.size": 10,
            "grid.color": self.grid,
            "grid.linewidth": 0.8,
            "legend.frameon": False,
            "legend.fontsize": 9,
            "legend.title_fontsize": 9,
            "legend.labelcolor": self.ink,
            "lines.linewidth": 1.8,
            "pdf.fonttype": 42,
            "savefig.facecolor": self.paper,
            "svg.hashsalt": "fedraa",
            "text.color": self.ink,
            "xtick.color": self.faint,
            "xtick.labelcolor": self.ink,
            "ytick.color": self.faint,
            "ytick.labelcolor": self.ink,
        }


LIGHT = Theme(
    "light",
    ink="#1b1f24",
    faint="#6b727b",
    grid="#e4e7ea",
    paper="#ffffff",
    palette=PALETTE,
)
DARK = Theme(
    "dark",
    ink="#e6e8eb",
    faint="#98a1ab",
    grid="#2d333b",
    paper="#16191d",
    palette=("#3D9BD9", "#F07F2E", "#1FC296", "#DE95BC", "#E69F00", "#8CD0F5", "#FFFFFF"),
)


@dataclass(frozen=True)
class Picture:
    """A plot of a report.

    Attributes:
        name: The base name of its files.
        title: The title.
        caption: The text below the plot.
        draw: Draws the plot in the colours of the current theme.
    """

    name: str
    title: str
    caption: str
    draw: Callable[[], Figure]


def render_picture(picture: Picture, theme: Theme, *forms: str) -> list[bytes]:
    """Return the picture in each file format, with reproducible bytes.

    Args:
        picture: The picture.
        theme: The colours.
        forms: `svg`, `pdf`, or both.
    """
    rendered = []
    with mpl.rc_context(theme.settings):
        figure = picture.draw()
        for form in forms:
            stream = io.BytesIO()
            figure.savefig(stream, format=form, dpi=160, metadata={DATES[form]: None})
            rendered.append(stream.getvalue())
            # The next file format must have the same layout, so the layout is not computed again.
            figure.set_layout_engine(None)
    return rendered


def line_style(i: int) -> dict[str, str]:
    """Return the colour and the line style of the i-th line."""
    return {"color": f"C{i % len(PALETTE)}", "linestyle": STYLES[i % len(STYLES)]}


def new_figure(height: float, rows: int = 1, **options: Any) -> tuple[Figure, Any]:
    """Return an empty figure, `WIDTH_INCHES` inches wide, and its axes in one column."""
    figure = Figure(figsize=(WIDTH_INCHES, height), layout="constrained")
    return figure, figure.subplots(rows, 1, **options)


def limit_axis_to_fractions(axes: Axes, *columns: pd.Series) -> None:
    """Limit the vertical axis to [0, 1] if all values are within this range."""
    if all(is_fraction(column) for column in columns):
        low, high = axes.get_ylim()
        axes.set_ylim(max(0.0, low), min(1.0, high))


def is_fraction(values: pd.Series) -> bool:
    """Return True if all values are from 0 to 1, as accuracies are."""
    return bool(values.between(0, 1).all())


def draw_legend(axes: Axes, title: str | None = None, keys: Sequence[Artist] | None = None) -> None:
    """Draw the legend above the axes. The figure grows if the legend has many rows.

    Args:
        axes: The axes.
        title: The title of the legend.
        keys: The entries; None for the entries of the axes.
    """
    handles = axes.get_legend_handles_labels()[0] if keys is None else list(keys)
    columns = _count_columns([len(str(handle.get_label())) for handle in handles])
    more = -(-len(handles) // columns) - LEGEND_ROWS
    if more > 0:
        figure = axes.figure.get_figure(root=True)
        figure.set_figheight(figure.get_figheight() + more * LEGEND_ROW_INCHES)
    axes.legend(
        # Matplotlib fills a legend column by column. This order of entries fills it row by row.
        handles=[*chain.from_iterable(handles[column::columns] for column in range(columns))],
        title=title,
        alignment="left",
        loc="lower left",
        bbox_to_anchor=(0, 1.0),
        ncols=columns,
        borderaxespad=0.2,
        handlelength=2.0,
        columnspacing=0.9,
    )


def _count_columns(lengths: Sequence[int]) -> int:
    """Return the largest number of legend columns in which labels of these lengths fit."""
    for columns in range(len(lengths), 1, -1):
        if sum(max(lengths[column::columns]) + KEY_CHARACTERS for column in range(columns)) <= LEGEND_CHARACTERS:
            return columns
    return 1
