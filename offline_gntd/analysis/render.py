"""Only here does analysis touch the disk: an experiment's table and figure, written to analysis/."""

from functools import partial
from pathlib import Path

from offline_gntd.analysis import bellman, scores
from offline_gntd.analysis.selection import select
from offline_gntd.analysis.table import FORMS, Table
from offline_gntd.files import home, write_text, writing
from offline_gntd.runs.experiments import VERSIONS, table2_name

FINAL = 10  # evaluations averaged for table2, as in the paper

TABLES = {"table1": bellman.table, "quickstart": bellman.table} | {
    table2_name(version): partial(scores.table, final=FINAL) for version in VERSIONS
}  # any other grid shows the scores of its last evaluation


def path(experiment: str, suffix: str) -> Path:
    return home() / "analysis" / f"{experiment}.{suffix}"


def table(experiment: str) -> tuple[Table, list[Path]]:
    made = TABLES.get(experiment, scores.table)(select(experiment))
    written = [path(experiment, form) for form in FORMS]
    for file, form in zip(written, FORMS, strict=True):
        write_text(file, made.text(form))
    return made, written


def figure(experiment: str) -> list[Path]:
    from offline_gntd.analysis import curves  # matplotlib is slow to import

    drawn = curves.figure(select(experiment))
    written = [path(experiment, suffix) for suffix in ("png", "pdf")]
    for file in written:
        with writing(file) as temporary:
            drawn.savefig(
                temporary,
                format=file.suffix[1:],
                dpi=200,
                metadata={"CreationDate": None} if file.suffix == ".pdf" else None,
            )
    return written
