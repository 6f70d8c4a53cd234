"""The site's files and navigation, from the repository's own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from docs_site.navigation import navigation
from docs_site.repository import MARK, link_targets, listing, site_files, with_pages_for_folders

ROOT = Path(__file__).resolve().parents[2]


def test_navigation_has_a_section_a_heading_and_a_page_an_item():
    index = (
        "# Docs\n\n[No item](x.md).\n\n## One\n\n- [A](a.md): text,\n  [more](c.md)\n- [B](../b/README.md)\n"
    )
    assert navigation(index, {"One": [("Made", "docs/reference/made.md")]}) == [
        {"Overview": "README.md"},
        {"One": [{"A": "docs/a.md"}, {"B": "b/README.md"}, {"Made": "docs/reference/made.md"}]},
    ]


def test_navigation_has_every_page_of_the_documentation():
    index = (ROOT / "docs" / "index.md").read_text()
    sections: Any = navigation(index, {})[1:]
    paths = {
        path for section in sections for pages in section.values() for page in pages for path in page.values()
    }
    pages = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md")}
    assert pages - paths == {"docs/index.md"}


def test_use_comes_before_migration():
    titles = re.findall(r"^## (.+)$", (ROOT / "docs" / "index.md").read_text(), re.MULTILINE)
    assert titles.index("Install") < titles.index("Use") < titles.index("Migrate")


def test_mark_is_a_picture_without_external_files():
    [mark] = set(re.findall(r"^  (?:logo|favicon): (.+)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    assert mark == MARK
    text = (ROOT / "docs_site" / mark).read_text()
    assert ElementTree.fromstring(text).get("viewBox") == "0 0 64 64"  # noqa: S314 - of our own
    assert re.findall(r"https?://[^\"]+", text) == ["http://www.w3.org/2000/svg"]


def test_page_of_decisions_has_all_of_them():
    folder = ROOT / "docs" / "adr"
    listed = set(link_targets("docs/adr/README.md", (folder / "README.md").read_text()))
    assert listed == {path.relative_to(ROOT).as_posix() for path in folder.glob("0*.md")}


def test_targets_of_links_are_relative_to_the_root_and_not_those_in_code():
    text = "[a](../x/y.md#there) [b](https://a.org/z) [c](#here) `[d](e.md)`\n```\n[f](g.md)\n```\n[h](i.md)"
    assert link_targets("docs/page.md", text) == ["x/y.md", "docs/i.md"]


def test_site_holds_all_linked_files_recursively(tmp_path: Path):
    files = {
        "README.md": "[docs](docs/a.md)",
        "CONTRIBUTING.md": "",
        "CHANGELOG.md": "[folder](deploy/rbac/)",
        "docs/a.md": "[readme](../x/README.md) [gone](gone.md)",
        "x/README.md": "[file](y.yaml)",
        "x/y.yaml": "",
        "x/z.yaml": "",
        "deploy/rbac/agent.yaml": "",
    }
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    found = site_files(tmp_path)
    assert set(found.files) == files.keys() - {"x/z.yaml"}
    assert found.listings == ("deploy/rbac",)
    assert listing(tmp_path, "deploy/rbac") == "# deploy/rbac\n\n- [agent.yaml](agent.yaml)\n"
    text = "[folder](deploy/rbac/) and [file](x/y.yaml)"
    assert with_pages_for_folders(tmp_path, "README.md", text) == (
        "[folder](deploy/rbac/README.md) and [file](x/y.yaml)"
    )
