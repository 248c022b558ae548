"""Plots of the loss landscape: a contour map and a surface."""

from functools import partial

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from mpl_toolkits.mplot3d import Axes3D

from fedraa.report.landscape import RHO, Surface
from fedraa.report.theme import SEQUENTIAL, WIDTH_INCHES, Picture, new_figure

AROUND = (
    "Mean cross-entropy on {} test samples around the final model, in two random directions. A step of 1 has the "
    "length of the model's filters (Li et al. 2018)."
)


def landscape_pictures(surface: Surface, sharpness: float, name: str, samples: int) -> list[Picture]:
    """Return the contour map and the surface of one model's loss.

    Args:
        surface: The loss surface.
        sharpness: The sharpness of the model.
        name: The beginning of the files' names.
        samples: The number of test samples in the caption.
    """
    about = AROUND.format(samples)
    sharp = f" Sharpness: within a Euclidean distance of {RHO:g}, gradient ascent finds a loss {sharpness:.4f} higher."
    return [
        Picture(f"{name}-contour", "Loss landscape, contour", about + sharp, partial(_draw_contour, surface)),
        Picture(f"{name}-surface", "Loss landscape, surface", about, partial(_draw_relief, surface)),
    ]


def _draw_contour(surface: Surface) -> Figure:
    figure, axes = new_figure(3.6)
    filled = axes.contourf(surface.x, surface.y, surface.loss, levels=20, cmap=SEQUENTIAL)
    lines = axes.contour(surface.x, surface.y, surface.loss, levels=8, colors="white", linewidths=0.7)
    axes.clabel(lines, fontsize=8, fmt="%.2g")
    axes.plot(0, 0, marker="*", markersize=12, color="white", markeredgecolor="black")
    figure.colorbar(filled, ax=axes, label="loss", pad=0.02, ticks=MaxNLocator(6))
    axes.set_xlabel("first direction")
    axes.set_ylabel("second direction")
    axes.set_aspect("equal")
    axes.locator_params(nbins=5)
    axes.grid(visible=False)
    return figure


def _draw_relief(surface: Surface) -> Figure:
    figure = Figure(figsize=(WIDTH_INCHES, 3.6))
    axes = figure.add_axes((0.0, 0.06, 0.92, 0.94), projection="3d")
    across, along = np.meshgrid(surface.x, surface.y)
    assert isinstance(axes, Axes3D)
    axes.plot_surface(across, along, surface.loss, cmap=SEQUENTIAL, rcount=60, ccount=60, linewidth=0)
    axes.set_xlabel("first direction")
    axes.set_ylabel("second direction")
    axes.set_zlabel("loss")
    axes.locator_params(nbins=5)
    return figure
