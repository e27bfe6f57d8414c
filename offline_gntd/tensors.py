"""Tensors on disk: written whole, and read without running anything that a file may hold."""

import io
from pathlib import Path
from typing import Any

import torch

from offline_gntd.errors import UserError
from offline_gntd.files import write_bytes


class Unreadable(UserError):
    """What a failing disk left: not what was written."""


def save(path: Path, content: Any) -> None:
    buffer = io.BytesIO()  # torch.save to a file hides that the disk is full
    torch.save(content, buffer)
    # not getbuffer(): a view that an error of the disk leaves in a traceback crashes Python 3.12's collector
    write_bytes(path, buffer.getvalue())


def load(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises nearly anything on a damaged file
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise Unreadable(f"{path} is damaged; remove its folder to make it anew ({reason})") from error
