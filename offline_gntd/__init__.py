"""An offline-RL benchmark suite around Gauss-Newton temporal-difference learning (GNTD)."""

__version__ = "0.2.0"
