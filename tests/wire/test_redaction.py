"""What leaves a machine in a report has no secrets."""

from __future__ import annotations

import json

import pytest

from k8s_rdma.cli.gather import OMITTED, redacted, redacted_text


@pytest.mark.parametrize(
    "key",
    [
        "password",
        "etcd_passwd",
        "token",
        "bearerToken",
        "clientSecret",
        "client-key-data",
        "privateKey",
        "key",
    ],
)
@pytest.mark.parametrize("value", ["hunter2", {"nested": "hunter2"}, ["hunter2"]])
def test_value_of_a_secret_is_left_out_at_any_depth(key, value):
    document = {"plugins": [{"type": "calico", "ipam": {key: value}}]}
    found = redacted(document)
    assert "hunter2" not in json.dumps(found)
    assert found["plugins"][0]["ipam"] == {key: OMITTED}


def test_our_own_configuration_is_left_as_it_is():
    """It says where secrets are, and not what."""
    document = {
        "node": "w1",
        "placementKeyFile": "/etc/k8s-rdma/key/placement.key",
        "tokenFile": "/etc/k8s-rdma/tokens",
        "tls": {"certFile": "/a", "keyFile": "/b"},
        "hardware": {"pfs": [{"names": ["eth0"], "numVfs": 4, "trust": True}]},
    }
    assert redacted(document) == document


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer hunter2hunter2",
        '{"event": "x", "token": "hunter2"}',
        "password=hunter2 user=x",
        "etcd_password: 'hunter2'",
        '{"client_secret": "hunt\\"er2 hunter2"}',
        "-----BEGIN EC " + "PRIVATE KEY-----\nhunter2\n-----END EC PRIVATE KEY-----",
        "-----BEGIN EC " + "PRIVATE KEY-----\nhunter2",
        "eyJhbGciOiJIUzI1NiJ9.hunter2.hunter2",
    ],
)
def test_secrets_in_logs_are_left_out(text):
    found = redacted_text(f"before {text} after\nnext")
    assert "hunter2" not in found
    assert found.startswith("before ")


@pytest.mark.parametrize(
    "text",
    [
        '{"event": "added", "pod": "default/a", "duration_ms": 31.2}',
        "placementKeyFile: /etc/k8s-rdma/key/placement.key",
        '"token_file": "/etc/k8s-rdma/tokens"',
    ],
)
def test_what_is_no_secret_stays(text):
    assert redacted_text(text) == text
