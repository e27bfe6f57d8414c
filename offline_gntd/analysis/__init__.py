"""Scores to tables, figures and the report.

TABLES and FIGURES list every kind: a new one is one function and one entry here. The command line, the report
and `render` read them. This file imports nothing heavy, so that --help is fast.
"""

from typing import NamedTuple


class Kind(NamedTuple):
    function: str  # module:function in this package
    title: str  # heading in the report, help on the command line
    metric: bool = False  # tables: whether --metric applies
    in_report: bool = True


# function(selection, measure) -> Table
TABLES = {
    "scores": Kind("scores:table", "Scores", metric=True),
    "td_error": Kind("td_error:table", "TD error and time to the threshold (the paper's Table 1)"),
    "claims": Kind("td_error:claims", "Gauss-Newton against its baseline, with a verdict"),
    "statistics": Kind("scores:statistics_table", "Aggregates over datasets"),
    "improvement": Kind("comparisons:improvement_table", "Probability of improvement"),
    "pairwise": Kind("comparisons:pairwise_table", "Differences from the first algorithm", metric=True),
    "budget": Kind("comparisons:budget_table", "Best algorithm after 1, 5 and 15 minutes of one core"),
    "published": Kind("comparisons:published_table", "Published numbers"),
}

# function(selection, measure, columns) -> Figure, or None if the runs do not have the data; the title is the
# caption, {unit} is updates or batches
FIGURES = {
    "updates": Kind("figures:by_updates", "Learning curves by {unit}: mean over seeds; shaded: std."),
    "seconds": Kind(
        "figures:by_seconds", "Learning curves by training time without evaluation; shaded: std."
    ),
    "td_error": Kind("figures:td_error", "TD error by {unit}: mean over seeds; shaded: range."),
    "profiles": Kind("figures:profiles", "Performance profiles over all datasets; shaded: 95 % intervals."),
    "efficiency": Kind(
        "figures:efficiency",
        "Result against training time: small marks are runs, large marks means.",
        in_report=False,
    ),
    "kfac": Kind(
        "figures:kfac_diagnostics",
        "K-FAC diagnostics by {unit}: mean over seeds; shaded: std or range.",
        in_report=False,
    ),
}
