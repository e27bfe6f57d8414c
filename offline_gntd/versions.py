"""The versions of Python and of the packages that the bits of a result depend on."""

import functools
import platform
from importlib.metadata import version

PACKAGES = ("offline_gntd", "torch", "numpy", "gymnasium", "mujoco", "minari")


@functools.cache
def installed() -> dict[str, str]:
    return {"python": platform.python_version()} | {package: version(package) for package in PACKAGES}
