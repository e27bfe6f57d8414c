"""Which Python, which packages and whose matrix products the bits of a result depend on."""

import functools
import platform
from importlib.metadata import version

from offline_gntd.nn import openblas

PACKAGES = ("offline_gntd", "torch", "numpy", "gymnasium", "mujoco", "minari")


@functools.cache
def installed() -> dict[str, str]:
    packages = {package: version(package) for package in PACKAGES}
    return {"python": platform.python_version(), **packages, "products": openblas.who_multiplies()}
