"""A headless Chromium, driven by the DevTools protocol over pipes: NUL after each JSON document."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
_OPTIONS = (
    *(
        "--headless=new",
        "--remote-debugging-pipe",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
    ),
    *("--disable-background-networking", "--no-first-run", "--hide-scrollbars"),
)
DEADLINE_S = 120


@dataclass(slots=True)
class Page:
    """One tab. violations: actions that the page's content security policy prevented."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    session: str
    numbers: count[int]
    events: list[dict[str, Any]]

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return await _call(self, method, parameters, self.session)

    async def open(self, url: str) -> None:
        """Load a page to its end."""
        self.events.clear()
        await self.call("Page.navigate", url=url)
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(await _message(self.reader))

    async def resize(self, width: int, height: int = 900, *, dark: bool = False) -> None:
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])

    async def evaluate(self, expression: str) -> Any:
        """The value of an expression, which the page's policy does not apply to."""
        found = await self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def press(self, key: str) -> None:
        code = {"Tab": 9, "Enter": 13}[key]
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            await self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text
            )

    async def screenshot(self) -> bytes:
        """The whole page as PNG."""
        found = await self.call("Page.captureScreenshot", captureBeyondViewport=True)
        return base64.b64decode(found["data"])

    def complaints(self) -> list[str]:
        """Return the browser's log entries about the page."""
        return [
            event["params"]["entry"]["text"] for event in self.events if event["method"] == "Log.entryAdded"
        ]


@asynccontextmanager
async def chromium(directory: Path) -> AsyncIterator[Page]:
    """A browser with one tab, and a profile of its own."""
    assert CHROMIUM
    to_browser, from_browser = os.pipe(), os.pipe()
    program = await asyncio.create_subprocess_exec(
        *("bash", "-c", f'exec "$0" "$@" 3<&{to_browser[0]} 4>&{from_browser[1]}', CHROMIUM),
        *(*_OPTIONS, f"--user-data-dir={directory}"),
        pass_fds=(to_browser[0], from_browser[1]),
        stderr=asyncio.subprocess.DEVNULL,
    )
    os.close(to_browser[0])
    os.close(from_browser[1])
    reader, writer = await _streams(from_browser[0], to_browser[1])
    page = Page(reader, writer, "", count(1), [])
    try:
        target = (await _call(page, "Target.createTarget", {"url": "about:blank"}))["targetId"]
        attached = await _call(page, "Target.attachToTarget", {"targetId": target, "flatten": True})
        page.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            await page.call(f"{domain}.enable")
        yield page
    finally:
        writer.close()
        program.terminate()
        await program.wait()


async def _streams(source: int, target: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=64 << 20)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(source, "rb", 0))
    transport, protocol = await loop.connect_write_pipe(
        asyncio.streams.FlowControlMixin, os.fdopen(target, "wb", 0)
    )
    return reader, asyncio.StreamWriter(transport, protocol, None, loop)


async def _message(reader: asyncio.StreamReader) -> dict[str, Any]:
    async with asyncio.timeout(DEADLINE_S):
        return dict(json.loads((await reader.readuntil(b"\0"))[:-1]))


async def _call(page: Page, method: str, parameters: dict[str, Any], session: str = "") -> dict[str, Any]:
    number = next(page.numbers)
    request = {
        "id": number,
        "method": method,
        "params": parameters,
        **({"sessionId": session} if session else {}),
    }
    page.writer.write(json.dumps(request).encode() + b"\0")
    await page.writer.drain()
    while True:
        message = await _message(page.reader)
        if message.get("id") == number:
            assert "error" not in message, message
            return dict(message["result"])
        page.events.append(message)
