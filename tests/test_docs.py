"""What the documentation says can be followed: its links, its commands, its names and the version."""

import ast
import re
import shlex
import tomllib
from pathlib import Path

import pytest

import offline_gntd
from offline_gntd.algorithms import CATALOGUE
from offline_gntd.cli import parser

REPOSITORY = Path(__file__).parents[1]
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "analysis/README.md", "results/README.md", "datasets/README.md")
    for path in REPOSITORY.glob(pattern)
)
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)


def identifier(page):
    return page.relative_to(REPOSITORY).as_posix()


def anchors(page):
    """As GitHub makes them of headings: words in lower case, joined by dashes."""
    heads = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def commands(page):
    """Every offline-gntd command of a page's blocks that is whole, without its comment."""
    for block in FENCE.findall(page.read_text()):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True) if line.startswith("offline-gntd ") else []
            if words and not re.search(r"[|…]", " ".join(words)):
                yield words[1:]


@pytest.mark.parametrize("page", PAGES, ids=identifier)
def test_links_lead_somewhere(page):
    for link in LINK.findall(page.read_text()):
        if "://" in link:
            continue
        place, _, anchor = link.partition("#")
        target = (page.parent / place).resolve() if place else page
        assert target.exists(), f"{link} in {identifier(page)}"
        if anchor:
            assert anchor in anchors(target), f"{link} in {identifier(page)}"


@pytest.mark.parametrize("page", [page for page in PAGES if any(commands(page))], ids=identifier)
def test_commands_parse(page):
    for words in commands(page):
        arguments = parser().parse_args(words)  # exits where it does not know one
        assert callable(arguments.handler)


def test_a_command_that_is_wrong_would_be_found():
    with pytest.raises(SystemExit):
        parser().parse_args(["run", "table2", "--worker", "--dry"])


def test_every_preset_has_its_page():
    text = "".join(page.read_text() for page in REPOSITORY.glob("docs/algorithms/*.md"))
    assert [name for name in CATALOGUE if f"`{name}`" not in text] == []


def defined(path):
    """The names that a module defines at its top level, and Class.method for its classes."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
            if isinstance(node, ast.ClassDef):
                names |= {
                    f"{node.name}.{item.name}" for item in node.body if isinstance(item, ast.FunctionDef)
                }
    return names


def test_files_and_functions_that_the_architecture_names_exist():
    text = (REPOSITORY / "docs/architecture.md").read_text()
    named = re.findall(r"`([\w/]+\.py)` `([\w.]+)`", text)
    assert len(named) > 25
    for path, name in named:
        assert name in defined(REPOSITORY / "offline_gntd" / path), f"{path} has no {name}"


def test_make_targets_that_are_named_exist():
    targets = set(re.findall(r"^([\w-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    named = {name for page in PAGES for name in re.findall(r"`make ([\w-]+)`", page.read_text())}
    assert {"test", "quickstart"} <= named <= targets


def test_one_version():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert project["version"] == offline_gntd.__version__
    assert f"\nversion: {project['version']}\n" in (REPOSITORY / "CITATION.cff").read_text()
    newest = re.search(r"^## \[([\d.]+)\]", (REPOSITORY / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest[1] == project["version"]
