"""Every figure there is of an experiment, by name."""

from collections.abc import Callable, Sequence

from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from offline_gntd.analysis import curves, profiles
from offline_gntd.analysis.selection import Selection
from offline_gntd.analysis.values import Measure
from offline_gntd.errors import UserError, unknown

# each makes a figure, or None where the runs have nothing of it
CURVES: dict[str, Callable[[Selection, int], Figure | None]] = {
    "updates": curves.by_updates,
    "seconds": curves.by_seconds,
    "bellman": curves.bellman_error,
    "kfac": curves.diagnostics,
}
OVER_RUNS: dict[str, Callable[[Selection, int, Measure], Figure | None]] = {
    "profiles": profiles.performance,
    "efficiency": profiles.efficiency,
}
CAPTIONS = {
    "updates": "Learning curves by {unit}: mean over seeds, standard deviation shaded.",
    "seconds": "Learning curves by seconds of training without evaluation; times are means over seeds.",
    "bellman": "Bellman error by {unit}: mean over seeds, their range shaded.",
    "profiles": "Performance profiles over all datasets, pointwise 95 % bootstrap intervals shaded.",
    "efficiency": "What is reached against seconds of training: small marks are runs, large ones means.",
    "kfac": "K-FAC's diagnostics by {unit}: mean over seeds; shaded: std, or the range on a log axis.",
}


def caption(selection: Selection, kind: str) -> str:
    return CAPTIONS[kind].format(unit=selection.unit)


def draw(
    selection: Selection, measure: Measure, columns: int, kinds: Sequence[str] = ()
) -> dict[str, Figure]:
    """The figures asked for, or all that the runs have something for."""
    for kind in kinds:
        if kind not in CAPTIONS:
            raise unknown("figure", kind, CAPTIONS)
    drawn = {}
    for kind in kinds or CAPTIONS:
        figure = (
            CURVES[kind](selection, columns)
            if kind in CURVES
            else OVER_RUNS[kind](selection, columns, measure)
        )
        if figure is not None:
            drawn[kind] = figure
        elif kinds:
            raise UserError(f"the runs of {selection.experiment.name} have nothing for the figure {kind!r}")
    return drawn


def close(figure: Figure) -> None:
    plt.close(figure)
