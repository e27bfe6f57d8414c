"""Tensors on disk with a checksum: written whole, read without executing anything a file may contain."""

import hashlib
import io
from pathlib import Path
from typing import Any

from offline_gntd.errors import UserError
from offline_gntd.files import write_bytes

MAGIC = b"offline_gntd sha256 "  # followed by the payload's hex digest, a line feed, the payload


class Unreadable(UserError):
    """A file that does not contain what was written to it."""


def save(path: Path, content: Any) -> None:
    import torch  # slow to import, and tables need only the name Unreadable

    buffer = io.BytesIO()  # torch.save to a file hides that the disk is full
    torch.save(content, buffer)
    # not getbuffer(): a view that an error of the disk leaves in a traceback crashes Python 3.12's collector
    payload = buffer.getvalue()
    write_bytes(path, MAGIC + hashlib.sha256(payload).hexdigest().encode() + b"\n" + payload)


def load(path: Path) -> Any:
    import torch

    try:
        head, _, payload = path.read_bytes().partition(b"\n")
    except OSError as error:
        raise Unreadable(f"cannot read {path}: {error.strerror or error}") from error
    if head != MAGIC + hashlib.sha256(payload).hexdigest().encode():
        raise Unreadable(f"{path} is damaged (checksum); delete its folder and start again")
    try:
        return torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises nearly anything
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise Unreadable(f"{path} cannot be loaded: {reason}") from error
