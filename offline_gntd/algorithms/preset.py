"""A preset: an algorithm's settings under the name a table shows."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Preset:
    label: str
    config: Any
