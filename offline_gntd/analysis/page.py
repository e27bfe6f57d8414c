"""HTML that needs nothing but itself: a page, and a table that sorts when its heads are pressed."""

from collections.abc import Iterable
from html import escape
from importlib import resources
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from offline_gntd.analysis.table import Cell, Row, Table


def whole(title: str, body: str) -> str:
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


def table(made: "Table", title: str = "") -> str:
    words = made.columns_of_words()
    heads = "".join(
        f'<th scope="col" aria-sort="none"{_class(of_words)}><button>{escape(name)}</button></th>'
        for name, of_words in zip(made.columns, words, strict=True)
    )
    foot = f"<tfoot>{_rows(made.foot, words)}</tfoot>" if made.foot else ""
    note = f'<p class="warning">{escape(made.note)}</p>' if made.note else ""
    return (
        f'<figure class="table" id="{escape(made.name)}">{f"<h4>{escape(title)}</h4>" if title else ""}'
        f'<div class="scroll"><table class="sortable">\n<thead><tr>{heads}</tr></thead>\n'
        f"<tbody>\n{_rows(made.rows, words)}\n</tbody>{foot}</table></div>\n"
        f"{note}<figcaption>{escape(made.caption)}</figcaption></figure>"
    )


def facts(pairs: dict[str, Any]) -> str:
    items = "".join(f"<dt>{escape(name)}</dt><dd>{escape(str(value))}</dd>" for name, value in pairs.items())
    return f"<dl>{items}</dl>"


def warnings(sentences: Iterable[str]) -> str:
    return "".join(f'<p class="warning">{escape(sentence)}</p>' for sentence in sentences)


def folded(title: str, body: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{body}</details>"


def _class(of_words: bool) -> str:
    return ' class="words"' if of_words else ""


def _rows(rows: "tuple[Row, ...]", words: list[bool]) -> str:
    return "\n".join(
        "<tr>" + "".join(_cell(cell, of_words) for cell, of_words in zip(row, words, strict=True)) + "</tr>"
        for row in rows
    )


def _cell(cell: "Cell", of_words: bool) -> str:
    shown = f"<strong>{escape(cell.text)}</strong>" if cell.bold else escape(cell.text)
    return f"<td{_class(of_words)}>{shown}</td>"
