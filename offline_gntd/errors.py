"""The one exception for a user's mistake: the command line prints it as one line and exits with 2."""

import difflib
from collections.abc import Iterable
from typing import Any

MOST_LISTED = 20  # names in one line


class UserError(Exception):
    """What is wrong, what would be right, and the command that mends it."""


def unknown(kind: str, name: str, known: Iterable[str], hint: str = "") -> UserError:
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1)
    if close:
        guess = f"; did you mean {close[0]!r}?"
    else:
        guess = f"; there are: {', '.join(known)}." if len(known) <= MOST_LISTED else "."
    return UserError(f"no {kind} {shortened(name)}{guess}{' ' + hint if hint else ''}")


def shortened(value: Any, length: int = 80) -> str:
    """The repr of a value, cut to a length that fits into one line."""
    text = repr(value)
    return text if len(text) <= length else f"{text[: length - 1]}…"
