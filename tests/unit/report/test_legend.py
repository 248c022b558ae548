"""A legend makes the figure higher, so that the axes keep their height for any number of lines."""

import matplotlib as mpl
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from fedraa.numbers import format_count
from fedraa.report.theme import LIGHT, draw_legend, line_style, new_figure

NAMES = (
    ["one"],
    ["fed-raa", "fedavg", "fedasync"],
    [f"method-{i}" for i in range(13)] + ["a-far-longer-name (interrupted)"],
    [f"{'x' * 40}{i}" for i in range(9)],
)


@pytest.mark.parametrize("names", NAMES)
def test_the_axes_keep_their_height_and_every_name_is_within_the_figure(names: list[str]) -> None:
    with mpl.rc_context(LIGHT.settings):
        figure, axes = new_figure(3.4)
        for i, name in enumerate(names):
            axes.plot([0, 1], [0, i], label=name, **line_style(i))
        draw_legend(axes)
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
    drawn = axes.get_window_extent().height / figure.dpi
    assert drawn > 2.2
    box = axes.get_legend().get_window_extent()
    assert box.x1 <= figure.bbox.x1 + 1
    assert box.y1 <= figure.bbox.y1 + 1


def test_format_count_uses_the_singular_for_one() -> None:
    assert [format_count(number, "run") for number in (0, 1, 2)] == ["0 runs", "1 run", "2 runs"]
