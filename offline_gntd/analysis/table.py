"""A table: cells with a caption that says the protocol, and the same numbers one per line."""

import io
from dataclasses import dataclass

import pandas as pd

from offline_gntd.errors import unknown


@dataclass(frozen=True)
class Cell:
    text: str
    bold: bool = False


@dataclass(frozen=True)
class Table:
    name: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    long: pd.DataFrame  # one line per dataset × algorithm, unrounded
    missing: tuple[str, ...] = ()  # runs the experiment asks for and the table does without

    @property
    def note(self) -> str:
        if not self.missing:
            return ""
        return f"INCOMPLETE: {len(self.missing)} runs are missing, first {self.missing[0]}."

    def text(self, form: str) -> str:
        if form not in FORMS:
            raise unknown("format", form, FORMS)
        return FORMS[form](self)


def to_markdown(table: Table) -> str:
    lines = [table.columns, ["---"] * len(table.columns)]
    lines += [[f"**{cell.text}**" if cell.bold else cell.text for cell in row] for row in table.rows]
    text = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return "\n\n".join(part for part in (text, table.note, table.caption) if part) + "\n"


def to_latex(table: Table) -> str:
    """A booktabs table environment: \\usepackage{booktabs} is all it needs."""
    body, previous = [], None
    for row in table.rows:
        if previous not in (None, row[0].text):
            body.append(r"\midrule")
        previous = row[0].text
        cells = [rf"\textbf{{{_escape(c.text)}}}" if c.bold else _escape(c.text) for c in row]
        body.append(" & ".join(cells) + r" \\")
    lines = [
        r"\begin{table}",
        r"\centering\small",
        rf"\begin{{tabular}}{{l{'r' * (len(table.columns) - 1)}}}",
        r"\toprule",
        " & ".join(map(_escape, table.columns)) + r" \\",
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
        rf"\caption{{{_escape(' '.join(part for part in (table.note, table.caption) if part))}}}",
        rf"\label{{tab:{table.name}}}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def to_csv(table: Table) -> str:
    text = io.StringIO()
    table.long.to_csv(text, index=False, float_format="%.6g", lineterminator="\n")
    return text.getvalue()


FORMS = {"md": to_markdown, "tex": to_latex, "csv": to_csv}

_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "±": r"$\pm$",
    "−": "$-$",
    "≥": r"$\geq$",
    "γ": r"$\gamma$",
    "β": r"$\beta$",
    "ω": r"$\omega$",
    "†": r"$\dagger$",
    "×": r"$\times$",
    "²": r"$^2$",
    "′": "$'$",
    "—": "---",
    "–": "--",
    "·": r"$\cdot$",
}


def _escape(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)
