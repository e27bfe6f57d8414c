"""What the documentation says can be followed: its links, its commands, its names and the version."""

import ast
import contextlib
import importlib
import importlib.util
import os
import re
import shlex
import subprocess
import sys
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
    if path.parent.name != "templates"  # their links are those of the pages made from them
)
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)


INLINE = re.compile(r"`(offline-gntd [^`…]+)`")
PLACEHOLDER = re.compile(r"^\$?[A-Z_]+$")  # W, FILE, EXPERIMENT


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


def inline_commands(page):
    """Every `offline-gntd …` in the text that has arguments and no placeholder such as FILE."""
    for line in INLINE.findall(FENCE.sub("", page.read_text())):
        words = shlex.split(line)[1:]
        if not any(PLACEHOLDER.match(word) for word in words):
            yield words


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


@pytest.mark.parametrize("page", [page for page in PAGES if any(inline_commands(page))], ids=identifier)
def test_inline_commands_parse(page, capsys):
    for words in inline_commands(page):
        with contextlib.suppress(SystemExit):
            parser().parse_args(words)
        said = capsys.readouterr().err
        # a command may be named without what it needs: `offline-gntd export`
        assert not said or "the following arguments are required" in said, (
            f"{words} in {identifier(page)}: {said}"
        )


@pytest.mark.parametrize("page", [page for page in PAGES if "```python" in page.read_text()], ids=identifier)
def test_python_parses_and_its_imports_exist(page):
    for block in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and node.module.startswith("offline_gntd"):
                module = importlib.import_module(node.module)
                assert [name.name for name in node.names if not hasattr(module, name.name)] == []


@pytest.fixture(scope="module")
def generator():
    """docs/generate.py"""
    spec = importlib.util.spec_from_file_location("generate", REPOSITORY / "docs/generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_results_pages_are_what_the_results_give(generator):
    """If this fails, results/ or docs/templates/ have changed: make results-pages"""
    with generator.exported_results_only():
        pages = generator.pages()
    assert {path.name for path in pages} == {
        "README.md",
        *(path.name for path in generator.TEMPLATES.glob("*.md")),
    }
    for path, text in pages.items():
        assert path.read_text() == text, f"{identifier(path)} is not what make results-pages writes"
        assert not re.search(r"\bnan\b|{{|{%", text), identifier(path)


def test_every_committed_table_is_made_by_make_results_pages(generator):
    """test_shipped.py compares those that are not in OTHER_TABLES."""
    with generator.exported_results_only():
        commands = generator.committed_tables()
        made = {generator.made(f"{command} --allow-mixed-data").name for command in commands}
        for command in generator.OTHER_TABLES:
            for path in generator.render.write(generator.made(f"{command} --allow-mixed-data")):
                assert path.read_text() == (REPOSITORY / "analysis" / path.name).read_text(), command
    pages = {path.stem for path in (REPOSITORY / "analysis").glob("*.md")} - {"README"}
    assert made == pages


def test_results_of_an_earlier_version_are_labelled(generator):
    with generator.exported_results_only():
        for name in generator.exported():
            versions = {row["version"] for row in generator._versions(name)}
            earlier = not all(
                version.startswith(generator.offline_gntd.__version__[:4]) for version in versions
            )
            assert generator.provenance(name).startswith("> **Results of version") == earlier, name


def test_pages_have_at_most_their_words():
    limits = {
        "README.md": 750,
        "docs/reference/performance.md": 800,
        "docs/results/findings.md": 3200,
        "docs/results/theory.md": 1700,
        "docs/results/ablations.md": 1300,
    }
    for name, most in limits.items():
        assert len((REPOSITORY / name).read_text().split()) <= most, name


def test_every_page_is_in_the_site():
    config = (REPOSITORY / "mkdocs.yml").read_text()
    pages = [
        path.relative_to(REPOSITORY / "docs").as_posix()
        for path in PAGES
        if path.is_relative_to(REPOSITORY / "docs")
    ]
    assert [page for page in pages if f": {page}\n" not in config] == []


@pytest.mark.slow
def test_the_site_is_built_without_a_warning_and_needs_no_network(tmp_path):
    pytest.importorskip("mkdocs")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path]
    done = subprocess.run(
        build, cwd=REPOSITORY, capture_output=True, text=True, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    )
    assert done.returncode == 0, done.stderr
    for page in tmp_path.rglob("*.html"):
        loaded = re.findall(
            r"<(?:script|img|link|iframe)[^>]+(?:src|href)=\"?(https?://[^\s\">]+)", page.read_text()
        )
        assert loaded == [], page


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
    named = {
        name for page in PAGES for name in re.findall(r"(?:`|^)make ([\w-]+)", page.read_text(), re.MULTILINE)
    }
    assert {"test", "quickstart"} <= named <= targets


def test_one_version():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert project["version"] == offline_gntd.__version__
    assert f"\nversion: {project['version']}\n" in (REPOSITORY / "CITATION.cff").read_text()
    newest = re.search(r"^## \[([\d.]+)\]", (REPOSITORY / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest[1] == project["version"]
