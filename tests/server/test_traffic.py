"""Counters on demand: who is asked when, and the answer to a scrape."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from k8s_rdma.server.agent_link import TrafficReader
from k8s_rdma.wire.report import ReportedPod
from k8s_rdma.wire.state_socket import Counters, MessageKind, ScanCounts, VfTraffic
from server.exposition_reader import Family, read, value
from server.serving import played_agent, report, run, serving, telling_agent, until_generation

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import httpx2

LONG_S = 3600
NODE = {"node": "w1"}
VF = {
    "node": "w1",
    "pf": "enp3s0f0",
    "pci": "0000:03:00.0",
    "vf": "0",
    "namespace": "default",
    "pod": "p",
    "interface": "rdma0",
}


def counters(sent: int, *, age_s: float | None = 0.0) -> Counters:
    vf = VfTraffic(
        pf="0000:03:00.0",
        pf_name="enp3s0f0",
        vf=0,
        tx_bytes=sent,
        rx_bytes=0,
        tx_packets=0,
        rx_packets=0,
        pod=ReportedPod(namespace="default", name="p", uid="u"),
        ifname="rdma0",
    )
    scans = ScanCounts(total=1, failed=0, seconds=0.5)
    vfs = () if age_s is None else (vf,)
    return Counters(node="w1", age_s=age_s, failed_samples=0, scans=scans, vfs=vfs)


async def scraped(client: httpx2.AsyncClient) -> dict[str, Family]:
    return read((await client.get("/metrics")).text)


def sent(families: dict[str, Family]) -> float:
    return value(families, "k8s_rdma_vf_transmitted_bytes_total", **VF)


def test_scrape_shows_present_counters_of_the_agent(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            serving(tmp_path, traffic=TrafficReader(timeout_s=LONG_S)) as client,
            telling_agent(tmp_path, report("e.1")) as agent,
        ):
            await until_generation(client, "e.1")
            scrape = asyncio.create_task(scraped(client))
            assert await agent.asked() is MessageKind.SAMPLE
            await agent.answer(counters(7))
            found = await scrape
            assert sent(found) == 7
            assert value(found, "k8s_rdma_agent_reachable") == 1
            assert value(found, "k8s_rdma_scan_duration_seconds_sum", **NODE) == 0.5

    run(scenario())


def test_agent_is_called_again_only_when_the_last_sample_is_old(tmp_path: Path) -> None:
    time_s = 100.0

    async def scenario() -> None:
        nonlocal time_s
        traffic = TrafficReader(clock=lambda: time_s, timeout_s=LONG_S)
        async with serving(tmp_path, traffic=traffic) as client, telling_agent(tmp_path, report()) as agent:
            await until_generation(client, "e.1")
            scrape = asyncio.create_task(scraped(client))
            await agent.asked()
            await agent.answer(counters(7, age_s=2))
            await scrape
            for seconds, age_s in ((0, 2), (5, 7), (6.9, 13.9)):
                time_s += seconds
                found = await scraped(client)  # would wait for ever if it asked
                assert sent(found) == 7
                assert value(found, "k8s_rdma_sample_age_seconds", **NODE) == age_s
            time_s += 0.2
            scrape = asyncio.create_task(scraped(client))
            await agent.asked()
            await agent.answer(counters(8))
            assert sent(await scrape) == 8

    run(scenario())


def test_scrapes_share_a_question(tmp_path: Path) -> None:
    async def scenario() -> None:
        asked = 0

        def ask() -> None:
            nonlocal asked
            asked += 1

        traffic = TrafficReader(timeout_s=LONG_S)
        traffic.connected(ask)
        scrapes = [asyncio.create_task(traffic.exposition()) for _ in range(5)]
        await asyncio.sleep(0)
        traffic.received(counters(7))
        shown = await asyncio.gather(*scrapes)
        assert asked == 1
        assert all(sent(read(each.decode())) == 7 for each in shown)

    run(scenario())


def test_scrape_gets_the_last_sample_with_its_age_when_the_agent_is_slow(tmp_path: Path) -> None:
    time_s = 100.0

    async def scenario() -> None:
        nonlocal time_s
        traffic = TrafficReader(clock=lambda: time_s, timeout_s=0)
        async with serving(tmp_path, traffic=traffic) as client, telling_agent(tmp_path, report()) as agent:
            await until_generation(client, "e.1")
            assert "k8s_rdma_vf_transmitted_bytes_total" not in await scraped(client)
            assert await agent.asked() is MessageKind.SAMPLE
            await agent.answer(counters(7))
            await until(client, lambda found: "k8s_rdma_sample_age_seconds" in found)
            time_s += 40
            for _ in range(2):  # the second one does not ask once more
                found = await scraped(client)
                assert (sent(found), value(found, "k8s_rdma_sample_age_seconds", **NODE)) == (7, 40)
            assert await agent.asked() is MessageKind.SAMPLE
            await agent.answer(counters(8))
            await until(client, lambda found: sent(found) == 8)

    run(scenario())


async def until(client: httpx2.AsyncClient, holds: Callable[[dict[str, Family]], bool]) -> None:
    while not holds(await scraped(client)):
        pass


def test_no_old_counters_are_shown_when_the_agent_went_away(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, traffic=TrafficReader(timeout_s=LONG_S)) as client:
            async with telling_agent(tmp_path, report("e.1")) as agent:
                await until_generation(client, "e.1")
                scrape = asyncio.create_task(scraped(client))
                await agent.asked()
                await agent.answer(counters(7))
                await scrape
                agent.hang_up()
                await until(client, lambda found: value(found, "k8s_rdma_agent_reachable") == 0)
                assert list(await scraped(client)) == ["k8s_rdma_agent_reachable"]
            async with played_agent(tmp_path) as agent:
                await agent.accept()
                await agent.send(report("e.2"))
                await until_generation(client, "e.2")
                scrape = asyncio.create_task(scraped(client))
                await agent.asked()
                agent.hang_up()  # whoever waits for its answer waits no longer
                assert "k8s_rdma_scan_errors_total" not in await scrape

    run(scenario())


def test_scrape_shows_how_looks_go_while_no_sample_could_be_taken(tmp_path: Path) -> None:
    async def scenario() -> None:
        traffic = TrafficReader(timeout_s=LONG_S)
        async with serving(tmp_path, traffic=traffic) as client, telling_agent(tmp_path, report()) as agent:
            await until_generation(client, "e.1")
            for _ in range(2):  # there is no sample, so it is asked for each time
                scrape = asyncio.create_task(scraped(client))
                await agent.asked()
                await agent.answer(counters(0, age_s=None))
                found = await scrape
                assert "k8s_rdma_sample_age_seconds" not in found
                assert value(found, "k8s_rdma_scan_duration_seconds_count", **NODE) == 1

    run(scenario())
