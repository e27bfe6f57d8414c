"""The one exception for a user's mistake: the command line prints it as one line and exits with 2."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """What is wrong, what would be right, and the command that mends it."""


def unknown(kind: str, name: str, known: Iterable[str], hint: str = "") -> UserError:
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1)
    guess = f"; did you mean {close[0]!r}?" if close else f"; there are: {', '.join(known)}."
    return UserError(f"no {kind} {name!r}{guess}{' ' + hint if hint else ''}")
