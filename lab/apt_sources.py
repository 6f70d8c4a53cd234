"""The package sources that guests are made from: those of Debian 12, with its backports.

A machine of Debian 12 has them. A later one has those of its own release, and Debian's archive has all
supported releases under one address, signed by keys that `debian-archive-keyring` brings: the same sources
with other suites. sources.list(5) describes both forms: stanzas of fields (deb822), and one line a source.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lab.errors import CannotRun

if TYPE_CHECKING:
    from collections.abc import Iterator

RELEASE = "bookworm"
"""Debian 12: the lab's kernel and its drivers are this release's."""
_LATER = re.compile(r"^(trixie|forky|stable|testing|unstable|sid)(-security)?$")
"""Suites of releases that can build and run the lab; their updates lie beside them."""
_ARCHIVE = re.compile(r"/debian(-security)?(\.list)?/?$")
"""An address of Debian's archive, or the file of its mirrors that Debian's cloud images have."""
_SUITES = re.compile(rf"^{RELEASE}(-updates|-security|-backports|/updates)?$")
_LINE = re.compile(
    r"^deb\s+(?:\[(?P<options>[^]]*)\]\s+)?(?P<uri>\S+)\s+(?P<suite>\S+)\s+(?P<components>.+)$"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One source: its suites, and all its fields as a stanza."""

    suites: tuple[str, ...]
    stanza: str

    def with_suite(self, suite: str) -> Source:
        """Return the same archive for another suite."""
        stanza = re.sub(r"(?im)^Suites:.*$", f"Suites: {suite}", self.stanza)
        return Source(suites=(suite,), stanza=stanza)


def debian_sources(etc: Path = Path("/etc/apt")) -> str:
    """Return stanzas for a private sources file; raise CannotRun if the machine has no source of Debian."""
    found = _all(etc)
    ours = [source for source in found if source.suites and all(map(_SUITES.match, source.suites))]
    ours = ours or list(_of_later_debian(found))
    base = next((source for source in ours if RELEASE in source.suites), None)
    if base is None:
        raise CannotRun(f"apt of this machine has no source of Debian 12 ({RELEASE}), nor of a later Debian")
    backports = f"{RELEASE}-backports"
    if not any(backports in source.suites for source in ours):
        ours.append(base.with_suite(backports))
    return "\n\n".join(source.stanza for source in ours) + "\n"


def _of_later_debian(found: list[Source]) -> Iterator[Source]:
    """Yield the first archive of a later Debian, and its first archive of security, with the lab's suites."""
    suites = [_suite_instead(source) for source in found]
    for suite in (RELEASE, f"{RELEASE}-security"):
        if suite in suites:
            yield found[suites.index(suite)].with_suite(suite)


def _suite_instead(source: Source) -> str:
    """Return the suite of Debian 12 for a source of a later Debian; empty for other archives."""
    suite = next(filter(None, map(_LATER.match, source.suites)), None)
    uris, components = (
        (re.search(rf"(?im)^{name}:(.*)$", source.stanza) or [""] * 2)[1].split()
        for name in ("URIs", "Components")
    )
    if suite is None or "main" not in components or not all(map(_ARCHIVE.search, uris)):
        return ""
    return f"{RELEASE}{suite[2] or ''}"


def _all(etc: Path) -> list[Source]:
    found = []
    for path in sorted([etc / "sources.list", *(etc / "sources.list.d").glob("*")]):
        if path.suffix == ".sources":
            found += _stanzas(path.read_text(errors="replace"))
        elif path.suffix == ".list" and path.exists():
            found += _lines(path.read_text(errors="replace"))
    return found


def _stanzas(text: str) -> list[Source]:
    bare = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    found = []
    for stanza in re.split(r"\n\s*\n", bare):
        fields = dict(re.findall(r"(?m)^([A-Za-z-]+):\s*(.*)$", stanza))
        if "deb" in fields.get("Types", "").split() and fields.get("Enabled", "yes").lower() != "no":
            only_binary = re.sub(r"(?m)^Types:.*$", "Types: deb", stanza.strip())
            found.append(Source(suites=tuple(fields.get("Suites", "").split()), stanza=only_binary))
    return found


def _lines(text: str) -> list[Source]:
    matches = (_LINE.match(line.partition("#")[0].strip()) for line in text.splitlines())
    return [_of_line(match) for match in matches if match]


def _of_line(match: re.Match[str]) -> Source:
    names = {"signed-by": "Signed-By", "arch": "Architectures", "trusted": "Trusted"}
    stanza = [
        "Types: deb",
        f"URIs: {match['uri']}",
        f"Suites: {match['suite']}",
        f"Components: {match['components']}",
    ]
    for option in (match["options"] or "").split():
        key, _, value = option.partition("=")
        if key.lower() in names:
            stanza.append(f"{names[key.lower()]}: {value.replace(',', ' ')}")
    return Source(suites=(match["suite"],), stanza="\n".join(stanza))
