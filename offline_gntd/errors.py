"""The exception for a user's mistake: the command line prints it as one line and exits with code 2."""

import difflib
from collections.abc import Iterable
from typing import Any

MOST_LISTED = 20  # names in one line


class UserError(Exception):
    """The message says what is wrong, what would be right, and which command helps."""


def unknown(kind: str, name: str, known: Iterable[str], hint: str = "", list_all: bool = False) -> UserError:
    """The error for a name that does not exist, with the most similar known name or a list of known names."""
    known = list(known) if list_all else sorted(known)
    close = difflib.get_close_matches(name, known, n=1)
    text = f"no {kind} {shortened(name)}" + (f"; did you mean {close[0]!r}?" if close else "")
    if list_all or (not close and len(known) <= MOST_LISTED):
        text += f"{'' if close else ';'} there are: {', '.join(known)}."
    elif not close:
        text += "."
    return UserError(f"{text} {hint}".rstrip())


def shortened(value: Any, length: int = 80) -> str:
    """The repr of a value, cut to a length that fits into one line."""
    text = repr(value)
    return text if len(text) <= length else f"{text[: length - 1]}…"


def first_line(error: BaseException | str) -> str:
    """The first line of an error's message; the name of its type if it has none."""
    text = error.args[0] if isinstance(error, KeyError) and error.args else error  # str() would add quotes
    return (str(getattr(error, "strerror", None) or text).splitlines() or [""])[0] or type(error).__name__
