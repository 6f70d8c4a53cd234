from __future__ import annotations

import pytest

from k8s_rdma.config.extender import ExtenderConfig
from k8s_rdma.config.ports import port_of
from k8s_rdma.config.server import ServerConfig
from k8s_rdma.errors import MalformedError, Reason


@pytest.mark.parametrize("text", ["no", "-1", "65536", " 1", "1" * 5000])
def test_port_of_the_environment_is_refused_if_it_is_malformed(text: str):
    with pytest.raises(MalformedError, match="PORT"):
        port_of(ExtenderConfig(), {"PORT": text})


def test_port_of_the_environment_overrides_the_configured_one():
    assert port_of(ExtenderConfig(port=1), {"PORT": "8080"}) == 8080
    assert port_of(ExtenderConfig(port=1), {"PORT": ""}) == 1


@pytest.mark.parametrize(
    ("value", "port"), [(None, 54005), ("", 54005), ("8080", 8080), ("0", 0), ("65535", 65535)]
)
def test_port_is_overridden_when_the_environment_sets_one(value: str | None, port: int) -> None:
    environment = {} if value is None else {"PORT": value}
    assert port_of(ServerConfig(), environment) == port


@pytest.mark.parametrize("value", ["http", "-1", "65536", "80 ", "²", "9" * 5000])
def test_port_is_refused_when_the_environment_sets_no_number(value: str) -> None:
    with pytest.raises(MalformedError, match="PORT") as refused:
        port_of(ServerConfig(), {"PORT": value})
    assert refused.value.reason is Reason.INVALID_ENVIRONMENT
