"""Tensors on disk: written whole, and read without running anything that a file may hold."""

from pathlib import Path
from typing import Any

import torch

from offline_gntd.errors import UserError
from offline_gntd.files import writing


def save(path: Path, content: Any) -> None:
    with writing(path) as temporary:
        torch.save(content, temporary)


def load(path: Path) -> Any:
    try:
        return torch.load(path, weights_only=True)
    except Exception as error:  # torch raises nearly anything on a damaged file
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"{path} is damaged; remove its folder to make it anew ({reason})") from error
