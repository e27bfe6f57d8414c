"""How figures look: panels of a column's width, colours that the colour-blind tell apart, one legend."""

from collections.abc import Sequence
from typing import NamedTuple

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import seaborn
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

WIDTH, HEIGHT = 3.4, 2.4  # inches of a panel: one column of a paper; two fill a page
LEGEND_LINE = 0.18  # inches
ROUNDED = 20  # highest over lowest value below which a logarithmic axis has ticks at 1, 2, 5, not at powers


class Style(NamedTuple):
    """An algorithm is never told by its colour alone."""

    colour: tuple[float, float, float]
    dash: tuple[float, ...]
    marker: str


def styles(labels: Sequence[str]) -> dict[str, Style]:
    colours = seaborn.color_palette("colorblind", len(labels))
    dashes = ((), (4, 1.5), (1, 1), (3, 1.25, 1.5, 1.25), (5, 1, 1, 1, 1, 1), (6, 3))
    markers = "osD^vPX*<>"
    return {
        label: Style(colours[i], dashes[i % len(dashes)], markers[i % len(markers)])
        for i, label in enumerate(labels)
    }


def theme() -> None:
    seaborn.set_theme(
        style="whitegrid",
        context="paper",
        palette="colorblind",
        rc={
            "font.size": 8,
            "axes.titlesize": 8,
            "axes.labelsize": 8,
            "xtick.labelsize": 7,
            "ytick.labelsize": 7,
            "legend.fontsize": 8,
            "lines.linewidth": 1.4,
            "grid.linewidth": 0.5,
            "axes.edgecolor": "0.4",
            "axes.linewidth": 0.8,
            "pdf.fonttype": 42,  # text stays text
        },
    )


def panels(count: int, columns: int) -> tuple[Figure, list[Axes]]:
    """A figure with `count` panels in at most `columns` columns."""
    theme()
    columns = min(columns, count)
    rows = -(-count // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(WIDTH * columns, HEIGHT * rows + 0.4), squeeze=False, layout="constrained"
    )
    for axis in axes.flat:
        axis.xaxis.set_major_locator(MaxNLocator(5))
    for axis in axes.flat[count:]:
        axis.set_axis_off()
    return figure, list(axes.flat[:count])


def legend(figure: Figure, axes: Sequence[Axes], columns: int) -> None:
    """One legend for all panels, above them."""
    handles: dict[str, Artist] = {}
    for axis in axes:
        for handle, name in zip(*axis.get_legend_handles_labels(), strict=True):
            handles.setdefault(name, handle)
        if own := axis.get_legend():
            own.remove()
    inches = 0.065 * max(map(len, handles), default=1) + 0.45  # of an entry
    across = max(1, min(len(handles), int(columns * WIDTH / inches)))
    lines = -(-len(handles) // across)
    figure.set_figheight(figure.get_figheight() + LEGEND_LINE * (lines - 1))  # the panels keep theirs
    figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=across, frameon=False)


def logarithmic(axis: Axes) -> None:
    axis.set_yscale("log")
    low, high = axis.get_ylim()
    if high / low < ROUNDED:
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_major_formatter(lambda value, position: f"{value:g}")
    axis.yaxis.set_minor_formatter(NullFormatter())
