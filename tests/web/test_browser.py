"""The pages in a real browser: no text is cut, everything can be read and reached, and no script runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from k8s_rdma.wire.views import Limit
from web.cases import EXAMPLE, HOSTILE, cluster, explanation, node, pf, waiting
from web.chromium import CHROMIUM, chromium
from web.node_servers import Node, Turns, Vf, measuring, metrics
from web.serving import serving
from web.test_right_sizing import WORKLOADS, RecordingPrometheus, answer, records_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from web.chromium import Page

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium"),
]

POD = "/pods/research/llama-pretrain-worker-0"
PAGES = ("/", "/pending", "/right-sizing", "/nodes/worker-1", "/namespaces/research", POD, "/nope")
SCREENSHOTS = os.environ.get("K8S_RDMA_SCREENSHOTS")

CONTRAST = """
(() => {
  const parse = colour => colour.match(/[\\d.]+/g).map(Number);
  const channel = value =>
    value <= 10 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4;
  const luminance = colour => {
    const [red, green, blue] = parse(colour).map(channel);
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const back = element => {
    for (; element; element = element.parentElement) {
      const colour = getComputedStyle(element).backgroundColor;
      if ((parse(colour)[3] ?? 1) > 0) return colour;
    }
    return 'rgb(255, 255, 255)';
  };
  const ratio = element => {
    const colours = [getComputedStyle(element).color, back(element)].map(luminance);
    return (Math.max(...colours) + 0.05) / (Math.min(...colours) + 0.05);
  };
  return [...document.querySelectorAll('body *')]
    .filter(element => [...element.childNodes].some(node => node.nodeType === 3 && node.textContent.trim()))
    .filter(element => ratio(element) < 4.5)
    .map(element => element.tagName + ' ' + element.textContent.slice(0, 40) + ' ' + ratio(element));
})()
"""
"""Texts with a contrast below 4.5 to 1: WCAG 2.2, success criterion 1.4.3."""

OUTSIDE = """
[...document.querySelectorAll('body *')]
  .filter(element => !element.closest('.skip, .skip-title'))
  .filter(element => {
    const box = element.getBoundingClientRect();
    return box.right > innerWidth + 0.5 || box.left < -0.5;
  })
  .map(element => element.tagName + '.' + element.className + ' ' + element.textContent.slice(0, 40))
"""

FOCUS = """
(element =>
  [...document.querySelectorAll('*')].indexOf(element) + ' ' + getComputedStyle(element).outlineStyle)
(document.activeElement)
"""


@pytest.fixture
async def browser(tmp_path: Path) -> AsyncIterator[Page]:
    async with chromium(tmp_path / "profile") as page:
        yield page


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1366])
async def test_pages_fit_and_can_be_read(browser: Page, width: int, dark: bool):
    turns = Turns()
    async with (
        records_of(RecordingPrometheus(answer(*WORKLOADS)), turns) as records,
        measuring(Node(metrics("w1", Vf(1, "research/notebook", "rdma0"))), turns) as traffic,
        serving(EXAMPLE, explanation(), records=records, node_traffic=traffic) as site,
    ):
        site.documents.limit = Limit(used_mbps=100_000, limit_mbps=400_000, used_vfs=9, limit_vfs=8)
        records.want()
        await turns.read()
        await browser.resize(width, dark=dark)
        for path in PAGES:
            await browser.open(f"{site.url}{path}")
            assert await browser.evaluate("document.documentElement.scrollWidth") <= width, path
            assert await browser.evaluate(OUTSIDE) == [], path
            assert await browser.evaluate(CONTRAST) == [], path
            assert await browser.evaluate("getComputedStyle(document.body).marginTop") == "0px", "no style"
            if path != "/nope":
                assert browser.complaints() == []
            if SCREENSHOTS:
                name = path.strip("/").split("/")[0] or "cluster"
                file = Path(SCREENSHOTS, f"{name}-{width}{'-dark' if dark else ''}.png")
                file.write_bytes(await browser.screenshot())  # noqa: ASYNC240  on request


async def test_long_names_do_not_widen_a_phone(browser: Page):
    long = "x" * 253
    view = cluster(
        node(long, pf(0), problems=(long,)),
        pending=(waiting(f"{'n' * 63}/{long}", "y" * 300),),
    )
    async with serving(view) as site:
        await browser.resize(390)
        for path in ("/", "/pending", f"/nodes/{long}"):
            await browser.open(f"{site.url}{path}")
            assert await browser.evaluate("document.documentElement.scrollWidth") <= 390, path


async def test_everything_can_be_reached_by_keyboard(browser: Page):
    async with serving(EXAMPLE) as site:
        await browser.resize(1366)
        await browser.open(f"{site.url}/?refresh=0")
        expected = await browser.evaluate(
            "document.querySelectorAll('a, input:not([type=hidden]), select, button').length"
        )
        reached: set[str] = set()
        for _ in range(expected):
            await browser.press("Tab")
            reached.add(await browser.evaluate(FOCUS))
        assert len(reached) == expected
        assert all(element.endswith(" solid") for element in reached), "focus is seen"
        await browser.open(f"{site.url}/?refresh=0")
        await browser.press("Tab")
        assert await browser.evaluate("document.activeElement.textContent") == "Skip to content"
        assert await browser.evaluate("document.activeElement.getBoundingClientRect().left >= 0")
        await browser.press("Enter")
        assert await browser.evaluate("location.hash") == "#content"


async def test_hostile_texts_run_no_script(browser: Page):
    view = cluster(
        node(HOSTILE, pf(0), problems=(HOSTILE,)),
        pending=(waiting(f"ns/{HOSTILE}", HOSTILE),),
    )
    pod = explanation(malformed=HOSTILE, notes=(HOSTILE,))
    async with serving(view, pod) as site:
        for path in ("/", "/pending", POD):
            await browser.open(f"{site.url}{path}")
            assert await browser.evaluate("document.scripts.length + document.images.length") == 0
            assert not [event for event in browser.events if "Dialog" in event["method"]]
            assert "alert(1)" in await browser.evaluate("document.body.innerText")


async def test_policy_keeps_a_script_from_running(browser: Page):
    """As if the escaping had a hole."""
    async with serving(EXAMPLE) as site:
        await browser.open(site.url)
        await browser.evaluate(
            "(() => { const script = document.createElement('script'); script.textContent = 'window.ran = 1';"
            " document.body.append(script) })()"
        )
        assert await browser.evaluate("window.ran") is None
