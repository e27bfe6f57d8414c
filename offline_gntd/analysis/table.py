"""A table: cells with a caption that says the protocol, and the same numbers one per line."""

import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd

from offline_gntd.analysis import page
from offline_gntd.errors import unknown


@dataclass(frozen=True)
class Cell:
    text: str
    bold: bool = False


Row = tuple[Cell, ...]


@dataclass(frozen=True)
class Table:
    name: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    long: pd.DataFrame  # one line per dataset × algorithm
    missing: tuple[Any, ...] = ()  # runs the experiment asks for and the table does without
    foot: tuple[Row, ...] = ()  # totals, which stay below however the rows are sorted
    made_of: str = "runs"

    @property
    def note(self) -> str:
        if not self.missing:
            return ""
        cells = len({absent.cell for absent in self.missing})
        return (
            f"INCOMPLETE: {len(self.missing)} {self.made_of} are missing, in {cells} cells marked missing "
            f"or k/n; first {self.missing[0]}."
        )

    @property
    def legend(self) -> str:
        return " ".join(part for part in (self.note, self.caption) if part)

    def columns_of_words(self) -> list[bool]:
        """Which columns hold words rather than numbers, and are set from the left."""
        columns = zip(*self.rows, strict=True)
        texts = [{cell.text for cell in column} - {"missing", "—", ""} for column in columns]
        return [any(text[0].isalpha() for text in column) for column in texts]

    def text(self, form: str) -> str:
        if form not in FORMS:
            raise unknown("format", form, FORMS)
        return FORMS[form](self)


def number(value: float) -> str:
    """DatasetInfo three digits that matter; — where there is no number."""
    if math.isnan(value):
        return "—"
    size = abs(value)
    return minus(f"{value:.2e}" if size >= 1e5 else f"{value:.1f}" if size >= 10 else f"{value:.2f}")


def tenths(value: float) -> str:
    """As scores and returns are given."""
    return "—" if math.isnan(value) else minus(f"{value:.1f}")


def minus(text: str) -> str:
    return text.replace("-", "−").replace("e−", "e-")


def result(line: dict[str, Any], column: str, expected: int, written: Callable[[float], str] = tenths) -> str:
    """mean ± std of a line, with † for diverged seeds and k/n where seeds are missing."""
    text = written(line[column])
    if not math.isnan(line[f"{column}_std"]):
        text += f" ± {written(line[f'{column}_std'])}"
    if line["diverged"]:
        text += f" †{line['diverged']}"
    return text if line["seeds"] == expected else f"{text} ({line['seeds']}/{expected})"


def to_markdown(table: Table) -> str:
    lines = [table.columns, ["---"] * len(table.columns)]
    lines += [
        [f"**{cell.text}**" if cell.bold else cell.text for cell in row] for row in table.rows + table.foot
    ]
    text = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return "\n\n".join(part for part in (text, table.note, table.caption) if part) + "\n"


def to_latex(table: Table) -> str:
    """A table environment no wider than its column: \\usepackage{booktabs,graphicx} is all it needs."""
    body, previous = [], None
    grouped = len({row[0].text for row in table.rows}) < len(table.rows)
    for row in table.rows:
        if grouped and previous not in (None, row[0].text):
            body.append(r"\midrule")
        previous = row[0].text
        body.append(_latex_row(row))
    if table.foot:
        body += [r"\midrule", *map(_latex_row, table.foot)]
    lines = [
        r"\begin{table}",
        r"\centering\small",
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{{''.join('l' if words else 'r' for words in table.columns_of_words())}}}",
        r"\toprule",
        " & ".join(map(_escape, table.columns)) + r" \\",
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}}",
        rf"\caption{{{_escape(table.legend)}}}",
        rf"\label{{tab:{table.name}}}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def to_csv(table: Table) -> str:
    text = io.StringIO()
    table.long.to_csv(text, index=False, float_format="%.6g", lineterminator="\n")
    return text.getvalue()


def to_html(table: Table) -> str:
    return page.whole(table.name, page.table(table))


FORMS = {"md": to_markdown, "tex": to_latex, "csv": to_csv, "html": to_html}

_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": "$<$",
    ">": "$>$",
    "±": r"$\pm$",
    "−": "$-$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "γ": r"$\gamma$",
    "β": r"$\beta$",
    "ω": r"$\omega$",
    "η": r"$\eta$",
    "τ": r"$\tau$",
    "α": r"$\alpha$",
    "†": r"$\dagger$",
    "×": r"$\times$",
    "²": r"$^2$",
    "√": r"$\surd$",
    "′": "$'$",
    "—": "---",
    "–": "--",
    "…": r"\dots{}",
    "·": r"$\cdot$",
}


def _latex_row(row: Row) -> str:
    cells = [rf"\textbf{{{_escape(cell.text)}}}" if cell.bold else _escape(cell.text) for cell in row]
    return " & ".join(cells) + r" \\"


def _escape(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)
