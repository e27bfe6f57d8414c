"""A table, its caption, and its Markdown, LaTeX, CSV and HTML forms."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from typing import Any

import pandas as pd

from offline_gntd.errors import unknown


@dataclass(frozen=True)
class Cell:
    text: str
    bold: bool = False


Row = tuple[Cell, ...]


@dataclass(frozen=True)
class Table:
    """A table; `render` sets the fields from `name` on, which depend on the experiment."""

    caption: str  # what the columns and marks mean
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    long: pd.DataFrame  # all numbers, for the CSV file
    foot: tuple[Row, ...] = ()  # totals: they stay below when the rows are sorted
    block: tuple[Row, ...] = ()  # a second block of rows with its own heading
    block_title: str = ""
    name: str = ""
    missing: tuple[Any, ...] = ()  # runs the experiment asks for that are not finished
    notes: tuple[str, ...] = ()  # warnings about the runs
    protocol: str = ""  # how the runs were made; a page with several tables shows it once
    made_of: str = "runs"

    @property
    def incomplete(self) -> str:
        """A sentence about the missing runs; empty if there are none."""
        if not self.missing:
            return ""
        cells = len({absent.cell for absent in self.missing})
        return (
            f"INCOMPLETE: {len(self.missing)} {self.made_of} are missing, in {cells} cells marked missing "
            f"or k/n; first {self.missing[0]}."
        )

    @property
    def explanation(self) -> str:
        """Caption and notes."""
        return sentences(self.caption, *self.notes)

    @property
    def legend(self) -> str:
        return sentences(self.incomplete, self.explanation, self.protocol)

    def text_columns(self) -> list[bool]:
        """Which columns contain words rather than numbers; they are left-aligned."""
        columns = zip(*self.rows, strict=True)
        texts = [{cell.text for cell in column} - {"missing", "—", ""} for column in columns]
        return [any(text[0].isalpha() for text in column) for column in texts]

    def text(self, form: str) -> str:
        if form not in FORMATS:
            raise unknown("format", form, FORMATS)
        return FORMATS[form](self)


def number(value: float) -> str:
    """About three significant digits; — for NaN."""
    if math.isnan(value):
        return "—"
    size = abs(value)
    return minus(f"{value:.2e}" if size >= 1e5 else f"{value:.1f}" if size >= 10 else f"{value:.2f}")


def tenths(value: float) -> str:
    """One decimal, for scores and returns; — for NaN."""
    return "—" if math.isnan(value) else minus(f"{value:.1f}")


def ratio_text(value: float) -> str:
    """Two decimals, or two significant digits below 0.1."""
    return f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


def whole(value: float) -> str:
    """Without decimals, for numbers of updates; — for NaN."""
    return "—" if math.isnan(value) else minus(f"{value:,.0f}")


def sentences(*parts: str) -> str:
    return " ".join(filter(None, parts))


def written_as(metric: str) -> Callable[[float], str]:
    return tenths if metric in ("score", "return") else number


def minus(text: str) -> str:
    return text.replace("-", "−").replace("e−", "e-")


def mean_std(
    line: dict[str, Any], column: str, expected: int, written: Callable[[float], str] = tenths
) -> str:
    """mean ± std of a line, with † for diverged seeds and k/n where seeds are missing."""
    text = written(line[column])
    if not math.isnan(line[f"{column}_std"]):
        text += f" ± {written(line[f'{column}_std'])}"
    if line["diverged"]:
        text += f" †{line['diverged']}"
    return text if line["seeds"] == expected else f"{text} ({line['seeds']}/{expected})"


def to_markdown(table: Table) -> str:
    rows = [*table.rows, *table.foot]
    if table.block:
        title = (Cell(f"*{table.block_title}*"), *[Cell("")] * (len(table.columns) - 1))
        rows += [title, *table.block]
    text = markdown_rows(table.columns, rows)
    return "\n\n".join(filter(None, (text, table.incomplete, table.explanation, table.protocol))) + "\n"


def markdown_rows(columns: Sequence[str], rows: Iterable[Row]) -> str:
    lines = [[*columns], ["---"] * len(columns), *([_markdown_cell(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _markdown_cell(cell: Cell) -> str:
    text = cell.text.replace("|", "\\|")
    return f"**{text}**" if cell.bold else text


def to_latex(table: Table) -> str:
    """A table environment at most as wide as the text; it needs \\usepackage{booktabs,graphicx}."""
    body, previous = [], None
    grouped = len({row[0].text for row in table.rows}) < len(table.rows)
    for row in table.rows:
        if grouped and previous not in (None, row[0].text):
            body.append(r"\midrule")
        previous = row[0].text
        body.append(_latex_row(row))
    if table.foot:
        body += [r"\midrule", *map(_latex_row, table.foot)]
    if table.block:
        heading = rf"\multicolumn{{{len(table.columns)}}}{{l}}{{\emph{{{_escape(table.block_title)}}}}} \\"
        body += [r"\midrule", heading, *map(_latex_row, table.block)]
    lines = [
        r"\begin{table}",
        r"\centering\small",
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{{''.join('l' if words else 'r' for words in table.text_columns())}}}",
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
    return table.long.to_csv(index=False, float_format="%.6g", lineterminator="\n")


def to_html(table: Table) -> str:
    return page(table.name, html_table(table))


FORMATS = {"md": to_markdown, "tex": to_latex, "csv": to_csv, "html": to_html}

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
    "‡": r"$\ddagger$",
    "↑": r"$\uparrow$",
    "Δ": r"$\Delta$",
    "×": r"$\times$",
    "²": r"$^2$",
    "√": r"$\surd$",
    "′": "$'$",
    "—": "---",
    "–": "--",
    "…": r"\dots{}",
    "·": r"$\cdot$",
    "|": r"$|$",
}


def _latex_row(row: Row) -> str:
    cells = [rf"\textbf{{{_escape(cell.text)}}}" if cell.bold else _escape(cell.text) for cell in row]
    return " & ".join(cells) + r" \\"


def _escape(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)


def page(title: str, body: str) -> str:
    """A self-contained HTML page."""
    style, script = (
        (resources.files("offline_gntd.analysis") / name).read_text(encoding="utf-8")
        for name in ("page.css", "page.js")
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n{body}\n"
        f"<script>\n{script}</script>\n</body>\n</html>\n"
    )


def html_table(table: Table, title: str = "", with_protocol: bool = True) -> str:
    """A table that sorts by the column heading clicked."""
    words = table.text_columns()
    heads = "".join(
        f'<th scope="col" aria-sort="none"{_class(is_text)}><button>{escape(name)}</button></th>'
        for name, is_text in zip(table.columns, words, strict=True)
    )
    block = ""
    if table.block:
        heading = f'<th class="words" colspan="{len(table.columns)}">{escape(table.block_title)}</th>'
        block = f"<tbody><tr>{heading}</tr>{_html_rows(table.block, words)}</tbody>"
    foot = f"<tfoot>{_html_rows(table.foot, words)}</tfoot>" if table.foot else ""
    warning = f'<p class="warning">{escape(table.incomplete)}</p>' if table.incomplete else ""
    caption = sentences(table.explanation, table.protocol if with_protocol else "")
    return (
        f'<figure class="table" id="{escape(table.name)}">{f"<h4>{escape(title)}</h4>" if title else ""}'
        f'<div class="scroll"><table class="sortable">\n<thead><tr>{heads}</tr></thead>\n'
        f"<tbody>\n{_html_rows(table.rows, words)}\n</tbody>{foot}{block}</table></div>\n"
        f"{warning}<figcaption>{escape(caption)}</figcaption></figure>"
    )


def _class(is_text: bool) -> str:
    return ' class="words"' if is_text else ""


def _html_rows(rows: Iterable[Row], words: list[bool]) -> str:
    return "\n".join(
        "<tr>"
        + "".join(_html_cell(cell, is_text) for cell, is_text in zip(row, words, strict=True))
        + "</tr>"
        for row in rows
    )


def _html_cell(cell: Cell, is_text: bool) -> str:
    shown = f"<strong>{escape(cell.text)}</strong>" if cell.bold else escape(cell.text)
    return f"<td{_class(is_text)}>{shown}</td>"
