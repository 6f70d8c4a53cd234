"""Tables of pages in docs/ that are made from the code: `make tables` writes them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docs_site.reference.annotation import keys_table, with_policy_keys
from docs_site.reference.configuration import meaning, settings
from docs_site.reference.drivers import drivers_table
from docs_site.reference.drivers import settings_table as driver_settings_table
from docs_site.reference.rest import TOKENS_DEMANDED, operation_of
from docs_site.reference.tables import code, rows_by_name, section, table
from k8s_rdma.config.extender import ExtenderConfig
from k8s_rdma.core.rate_ability import NO_RATE, RateAbility
from k8s_rdma.core.types import LinkType
from k8s_rdma.core.verification import Check, TrafficKind
from k8s_rdma.linux.drivers import DRIVERS, IGB_82576, ability
from k8s_rdma.server.app import openapi_document
from k8s_rdma.wire.verification import decode_verification

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from k8s_rdma.wire.verification import CardReport, CheckReport, VerificationReport

ROOT = Path(__file__).resolve().parents[2]


def settings_table(page: str) -> str:
    """Return the extender's keys and defaults from its model; the page's own table has their meanings."""
    meanings = {name: cells[-1] for name, cells in rows_by_name(section(page, "Configuration"))}
    rows = [
        [code(each.key), _default(each.default), meaning(meanings, each.key)]
        for each in settings(ExtenderConfig)
    ]
    return table(("key", "default", "meaning"), rows)


def _default(text: str) -> str:
    return "required" if text == "needed" else code(text.strip("`"))


def paths_table(_page: str) -> str:
    """Return the node server's paths from its OpenAPI document."""
    paths = openapi_document(TOKENS_DEMANDED)["paths"]
    rows = [_row(path, *operation_of(item)) for path, item in paths.items()]
    return table(("path", "answer", "status"), rows)


def _row(path: str, method: str, operation: dict[str, Any]) -> list[str]:
    shown = code(path if method == "GET" else f"{method} {path}")
    return [shown, operation["summary"], _statuses(operation)]


def _statuses(operation: dict[str, Any]) -> str:
    return ", ".join(code(status) for status in sorted(operation["responses"]) if status.isdigit())


def cards_table(_page: str) -> str:
    """Return the cards of the reports in `docs/verified`, a row for each report's card."""
    rows = []
    for path in sorted((ROOT / "docs/verified").glob("*.json")):
        report = decode_verification(path.read_bytes(), path.name)
        rows += [_card_row(path.name, report, card) for card in report.cards]
    headings = ("card", "link, Mb/s", "kernel", "receiver", "reservations", "cap (TCP)", "verbs", "report")
    return table(headings, rows)


def _card_row(name: str, report: VerificationReport, card: CardReport) -> list[str]:
    tcp = [check for check in card.checks if check.traffic is TrafficKind.TCP]
    verbs = [check for check in card.checks if check.traffic is TrafficKind.VERBS]
    return [
        f"{code(card.driver)} {card.device}".strip(),
        "unknown" if card.link_mbps is None else str(card.link_mbps),
        report.kernel,
        card.receiver,
        _results(check for check in tcp if check.check is Check.RESERVATION),
        _results(check for check in tcp if check.check is Check.CAP),
        _results(check for check in verbs if check.check is Check.CAP),
        f"[{report.version}](verified/{name})",
    ]


def _results(checks: Iterable[CheckReport]) -> str:
    """Return the enforcement and the result of alike checks; several have each once."""
    found = tuple(checks)
    if not found:
        return "none"
    by = ", ".join(sorted({check.enforced or "nothing" for check in found}))
    results = ", ".join(sorted({check.result.value for check in found}))
    return f"{by}: {results}"


LINK_MBPS = {"ixgbe": 10_000, "igb": 1_000}
"""Speeds of links of cards that take rates on no faster one; of the others 100 Gb/s."""


def rates_table(page: str) -> str:
    """Return each driver's holder of a reservation and of a cap; the page says whether VFs have verbs."""
    verbs = {name: cells[-1] for name, cells in rows_by_name(section(page, "Cards"))}
    rows = [
        [code(name), row.cards, *held_by(name), verbs.get(name, "unknown")] for name, row in DRIVERS.items()
    ]
    infiniband = ability(driver="mlx5_core", link_type=LinkType.INFINIBAND, link_mbps=100_000)
    rows += [
        ["any, on an InfiniBand link", "ConnectX", _reservation(infiniband), _cap(infiniband), "yes"],
        ["any other", "", _reservation(NO_RATE), _cap(NO_RATE), "unknown"],
        [code("virtual"), "none: [virtual SR-IOV](virtual-sriov.md)", "software", "software", "no"],
    ]
    return table(("driver", "cards", "reservation", "cap", "verbs on VFs"), rows)


def held_by(driver: str) -> tuple[str, str]:
    """Return the holder of a reservation and of a cap on a driver's cards, in words of docs/machines.md."""
    link_mbps = LINK_MBPS.get(driver, 100_000)
    vendor = min(IGB_82576) if driver == "igb" else ""
    found = ability(driver=driver, link_mbps=link_mbps, vendor=vendor)
    with_vlans = ability(driver=driver, link_mbps=link_mbps, vendor=vendor, vst=True)
    if with_vlans != found:
        return _reservation(found), f"{_cap(with_vlans)} if all VFs have a VLAN, else {_cap(found)}"
    return _reservation(found), _cap(found)


def _reservation(found: RateAbility) -> str:
    if found.min is None:
        return "counted"
    return "share" if found.weights else "card"


def _cap(found: RateAbility) -> str:
    return "software" if found.max is None else "card"


TABLES: dict[str, tuple[str, Callable[[str], str]]] = {
    "settings": ("docs/extender-configuration.md", settings_table),
    "paths": ("docs/http-api.md", paths_table),
    "cards": ("docs/verify.md", cards_table),
    "rates": ("docs/machines.md", rates_table),
    "drivers": ("docs/drivers.md", drivers_table),
    "driver-settings": ("docs/drivers.md", driver_settings_table),
    "keys": ("docs/annotation.md", keys_table),
    "policy": ("docs/namespace-policies.md", with_policy_keys),
}
"""By the name in the marks around a table: its page, and the table of the page as it is."""


def with_table(page: str, name: str, made: str) -> str:
    """Return the page with another table between the marks of that name."""
    begin, end = f"<!-- made: {name} -->\n", f"<!-- /made: {name} -->\n"
    return re.sub(f"{begin}.*{end}", lambda _: f"{begin}\n{made}\n{end}", page, flags=re.DOTALL)


def written(name: str) -> tuple[Path, str]:
    """Return the path of a table's page, and its text with the current table."""
    path, make = TABLES[name]
    page = (ROOT / path).read_text()
    return ROOT / path, with_table(page, name, make(page))


if __name__ == "__main__":
    for each in TABLES:
        path, text = written(each)
        path.write_text(text)
