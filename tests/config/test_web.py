"""The configuration of the pages: who sees them, and the source of their data."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from k8s_rdma.config.addresses import EXTENDER_URL
from k8s_rdma.config.web import WebConfig


def config(**keys: Any) -> WebConfig:
    return msgspec.convert(keys, WebConfig)


@pytest.mark.parametrize("listen", ["127.0.0.1", "::1", "127.8.8.8"])
def test_pages_show_everything_on_loopback(listen: str):
    assert config(listen=listen).extender.url == EXTENDER_URL


@pytest.mark.parametrize(
    ("listen", "shown"),
    [
        ("", "all addresses"),
        ("0.0.0.0", r"0\.0\.0\.0"),
        ("192.0.2.1", r"192\.0\.2\.1"),
        ("localhost", "localhost"),
    ],
)
def test_pages_beyond_loopback_need_reviews(listen: str, shown: str):
    with pytest.raises(
        msgspec.ValidationError, match=f"listen: {shown}; beyond loopback, set access: reviews"
    ):
        config(listen=listen)
    assert config(listen=listen, access="reviews").listen == listen


@pytest.mark.parametrize("key", ["certFile", "keyFile"])
@pytest.mark.parametrize("source", ["extender", "prometheus"])
def test_half_of_a_certificate_is_refused(source: str, key: str):
    endpoint = {"url": "https://a.example", key: "/etc/x"}
    with pytest.raises(msgspec.ValidationError, match="certFile and keyFile: one is of no use without the"):
        config(**{source: endpoint})


@pytest.mark.parametrize(
    ("url", "takes_extender", "takes_prometheus"),
    [
        ("http://a.example:9090", True, True),
        ("https://a.example/prometheus/", False, True),
        ("https://a.example?x", False, False),
        ("https://u@a.example", False, False),
        ("a.example", False, False),
    ],
)
def test_url_has_a_path_only_if_its_server_may(url: str, *, takes_extender: bool, takes_prometheus: bool):
    for source, takes in (("extender", takes_extender), ("prometheus", takes_prometheus)):
        if takes:
            assert getattr(config(**{source: {"url": url}}), source).url == url
        else:
            with pytest.raises(msgspec.ValidationError, match=rf"\$\.{source}\.url"):
                config(**{source: {"url": url}})


@pytest.mark.parametrize(
    "keys", [{"pollS": 0.5}, {"maxConnections": 7}, {"nodes": {"port": 0}}, {"poll_s": 5}]
)
def test_value_beyond_its_bounds_is_refused(keys: dict[str, Any]):
    with pytest.raises(msgspec.ValidationError):
        config(**keys)
