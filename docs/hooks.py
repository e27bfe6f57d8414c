"""Files outside docs/ that pages link to (figures, examples, source) become part of the site.

A link to ../../analysis/table1-updates.png works in the repository; in the site it is changed to one to
repository/analysis/table1-updates.png. Text files get the suffix .txt, which browsers show.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

LINK = re.compile(r"(\]\()([^)\s#:]+)([^)\s]*\))")


def _outside(page_uri: str, link: str, docs: Path) -> Path | None:
    """The file of the repository that a link leads to, if it is outside docs/."""
    target = (docs / posixpath.dirname(page_uri) / link).resolve()
    inside = docs in target.parents
    return None if inside or not target.is_file() else target


def on_files(files: Files, config: Any) -> Files:
    docs = Path(config["docs_dir"])
    for page in files.documentation_pages():
        for _, link, _ in LINK.findall(page.content_string):
            if target := _outside(page.src_uri, link, docs):
                uri = _uri(target, docs)
                if uri not in files.src_uris:
                    files.append(File.generated(config, uri, content=target.read_bytes()))
    return files


def _uri(target: Path, docs: Path) -> str:
    path = target.relative_to(docs.parent).as_posix()
    return f"repository/{path}" + (".txt" if target.suffix in (".md", ".py", ".cff") else "")


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    docs = Path(config["docs_dir"])

    def replaced(match: re.Match) -> str:
        target = _outside(page.file.src_uri, match[2], docs)
        if target is None:
            return match[0]
        link = posixpath.relpath(_uri(target, docs), posixpath.dirname(page.file.src_uri) or ".")
        return match[1] + link + match[3]

    return LINK.sub(replaced, markdown)
