"""The parts of a report that leave a machine have no secrets."""

from __future__ import annotations

import json

import pytest
import yaml

from k8s_rdma.cli.publishable import OMITTED, redacted, redacted_text


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
    """It has the places of secrets, and not the secrets."""
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
def test_text_without_secrets_stays(text):
    assert redacted_text(text) == text


FORMS = (
    *("auth: %s", "auth=%s", "pwd=%s", "pwd: %s", 'psk: "%s"', "psk=%s", '"psk": "%s"', "passwd %s"),
    *("https://user:%s@host/x", "postgres://u:%s@db:5432/n", 'err="Get \\"https://u:%s@h/\\": EOF"'),
    *("Cookie: session=%s", "Cookie: a=b; session=%s; c", "Set-Cookie: id=%s; Path=/", "x-token = %s"),
    *("Authorization: Basic %s", "Authorization: %s", "X-Api-Key: %s", "apikey:%s", "bearer %s"),
    *("--password %s", "--password=%s", "-p %s", "curl -u user:%s http://h", "password is %s", "login:%s"),
    *("DB_PASS=%s", "AWS_SECRET_ACCESS_KEY=%s", "export TOKEN=%s", "wpa_passphrase=%s", "pin: %s"),
    *("env: [{name: DB_PASSWORD, value: %s}]", '{"env":[{"name":"X","value":"%s"}]}', "signature=%s"),
    *('{"auth": "%s"}', '{"a": {"pwd": "%s"}}', '{"msg": "pwd=%s"}', '{"error":"auth %s denied"}'),
    *('time="x" level=info msg="login" password="%s"', 'msg="login with password=%s failed"'),
    *('I1128 09:00:00 1 x.go:1] "Started" apikey="%s"', "dockerconfigjson: %s", '"private_key": "%s"'),
)
SECRETS = ("swordfish", "hunter2", "dXNlcjpzd29yZGZpc2g=", "Sw0rd-F1sh!")


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_secrets_in_logs_are_left_out(form: str):
    for secret in SECRETS:
        assert secret not in redacted_text(form % secret)


@pytest.mark.parametrize(
    "form",
    [
        "auth: %s",
        "etcd: {username: root, pwd: %s}",
        "plugins: [{type: calico, psk: %s}]",
        "env: [{name: A, value: %s}]",
        'kubernetes: {k8s_api_root: "https://u:%s@h:1", kubeconfig: /etc/x}',
        'etcd_endpoints: "https://u:%s@h:2379"',
        'http: {headers: {Cookie: "s=%s"}}',
        'args: ["--password=%s"]',
        'name: "x?token=%s"',
        "ipam: {type: whereabouts, etcd_host: h, etcd_password: %s}",
        "delegate: {type: macvlan, master: eth0, extra: %s}",
        'mode: "pwd=%s"',
        'type: "https://u:%s@h"',
    ],
)
def test_forms_of_secrets_in_configurations_are_left_out(form: str):
    for secret in SECRETS:
        assert secret not in json.dumps(redacted(yaml.safe_load(form % secret)))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            "2026-11-28T09:00:00.123456Z info added pod=default/a pf=enp1s0f0 vf=3 duration_ms=31.2",
            "2026-11-28T09:00:00.123456Z info added pod=default/a pf=enp1s0f0 vf=3 duration_ms=31.2",
        ),
        (
            'E1128 09:00:00.0 1 remote_runtime.go:109] "Failed" err="no VF is free" pod="default/train-0"',
            'E1128 09:00:00.0 1 remote_runtime.go:109] "Failed" err="no VF is free" pod="default/train-0"',
        ),
        (
            "mlx5_core 0000:3b:00.0: VF 3 set mac 02:00:00:00:00:01 of 10.0.0.7",
            "mlx5_core 0000:3b:00.0: VF 3 set mac 02:00:00:00:00:01 of 10.0.0.7",
        ),
        ("cannot open /var/lib/cni/results: permission denied", None),
        ('{"event": "failed", "error": "PF enp3s0f0: 601 Mb/s needed, others leave 600 of 1000 Mb/s"}', None),
    ],
)
def test_lines_of_logs_stay_readable(text: str, shown: str | None):
    assert redacted_text(text) == (shown or text)


@pytest.mark.parametrize(
    "part",
    ["passwordtoken", "a", '"\\', "a=", "x-", "password ", "'", '"a":', "aB", "1.", "k: ", "a= =b", "-", "{"],
)
def test_time_is_in_proportion_to_the_text(part: str):
    """A line of 16,000 signs, the longest that is read, ends; a cubic expression takes days for it."""
    redacted_text(part * (16_000 // len(part)))
