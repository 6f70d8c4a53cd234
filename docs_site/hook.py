"""Calls of mkdocs while it builds the site: paths as in the repository, navigation, generated pages."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File, Files

from docs_site.navigation import navigation
from docs_site.reference.pages import PAGES, SECTION
from docs_site.repository import MARK, listing, site_files, with_pages_for_folders
from docs_site.tables import with_column_names, with_columns_marked

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
STYLE = "site.css"

_log = logging.getLogger("mkdocs.hooks.docs_site")
_FETCHED = re.compile(
    r"<(?:script|img|iframe)[^>]*\ssrc=\"?(?:https?:)?//|<link[^>]*stylesheet[^>]*href=\"?https?:"
)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Set the navigation, which is that of docs/index.md."""
    generated = {SECTION: [(page.title, page.path) for page in PAGES]}
    config.extra_css.append(STYLE)
    config.nav = navigation((ROOT / "docs" / "index.md").read_text(), generated)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Return the repository's files under their paths there, generated pages, and files of the theme."""
    of_theme = [file for file in files if file.src_dir != config.docs_dir]
    found = site_files(ROOT)
    ours = [File.generated(config, path, abs_src_path=str(ROOT / path)) for path in found.files]
    texts = {page.path: page.text(ROOT) for page in PAGES}
    texts |= {f"{folder}/README.md": listing(ROOT, folder) for folder in found.listings}
    made = [File.generated(config, path, content=text) for path, text in texts.items()]
    own = [
        File.generated(config, name, abs_src_path=str(ROOT / "docs_site" / name)) for name in (STYLE, MARK)
    ]
    return Files([*of_theme, *ours, *made, *own])


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Lead links to folders to a page."""
    return with_pages_for_folders(ROOT, page.file.src_uri, markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Mark elements that a phone shows in another way: cells of tables, and text in columns."""
    return with_columns_marked(with_column_names(html))


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:  # noqa: ARG001 - mkdocs' names
    """Report a page that would have its reader's browser fetch a file from another site."""
    if found := _FETCHED.search(output):
        _log.warning("%s: is not whole without a network: %s", page.file.src_uri, found[0])
    return output
