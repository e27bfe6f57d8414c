"""A layer imports only what stands above it: root, nn, algorithms, datasets … cli."""

import ast
from pathlib import Path

import offline_gntd

ROOT = Path(offline_gntd.__file__).parent
LAYERS = "nn algorithms datasets collection experiments analysis theory bench cli"
ORDER = ["", *LAYERS.split()]
ABOVE_ALL = {"__main__.py", "api.py"}  # the command and the Python API use every layer
REPORTS_THEORY = {("report.py", "theory"), ("render.py", "theory")}  # analysis shows the theory's tables


def layer(parts):
    return parts[0] if parts and parts[0] in ORDER else ""


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("offline_gntd"):
            inside = node.module.split(".")[1:]
            yield from ([inside] if inside else [[name.name] for name in node.names])
        elif isinstance(node, ast.Import):
            yield from (n.name.split(".")[1:] for n in node.names if n.name.startswith("offline_gntd."))


def test_layers():
    wrong = []
    for path in ROOT.rglob("*.py"):
        own = layer(path.relative_to(ROOT).parts)
        if path.name in ABOVE_ALL:
            own = "cli"
        wrong += [
            f"{path.relative_to(ROOT)} imports {'.'.join(parts)}"
            for parts in imports(path)
            if ORDER.index(layer(parts)) > ORDER.index(own)
            and (path.name, layer(parts)) not in REPORTS_THEORY
        ]
    assert not wrong
