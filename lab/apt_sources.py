"""The package sources of this machine that are its Debian release's, and the release's backports beside them.

sources.list(5) tells both forms: stanzas of fields (deb822), and one line a source.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from lab.errors import CannotRun

RELEASE = "bookworm"
"""Debian 12: the lab's kernel and its drivers are this release's."""
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
        """The same archive, for another suite."""
        stanza = re.sub(r"(?im)^Suites:.*$", f"Suites: {suite}", self.stanza)
        return Source(suites=(suite,), stanza=stanza)


def debian_sources(etc: Path = Path("/etc/apt")) -> str:
    """Stanzas for a private sources file; CannotRun if the machine has none of Debian 12."""
    ours = [source for source in _all(etc) if source.suites and all(map(_SUITES.match, source.suites))]
    base = next((source for source in ours if RELEASE in source.suites), None)
    if base is None:
        raise CannotRun(f"apt of this machine has no source of Debian 12 ({RELEASE})")
    backports = f"{RELEASE}-backports"
    if not any(backports in source.suites for source in ours):
        ours.append(base.with_suite(backports))
    return "\n\n".join(source.stanza for source in ours) + "\n"


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
