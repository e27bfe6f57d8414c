"""Names that are safe as the name of a folder."""

import re


def safe(text: str) -> str:
    """Letters, digits, - _ and . only, not hidden: mujoco/hopper/medium-v0 is mujoco-hopper-medium-v0."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.") or "unnamed"
