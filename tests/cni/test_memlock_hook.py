"""The program as the OCI hook that raises a container's limit of locked memory."""

from __future__ import annotations

import json
import resource
import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cni.call import Program

MEMLOCK = resource.RLIMIT_MEMLOCK
LOW = 64 << 10
HARD = 1 << 20


@pytest.fixture
def container() -> Iterator[int]:
    """A process with a low limit, as a runtime has made it."""
    command = ["prlimit", f"--memlock={LOW}:{HARD}", "sleep", "1000"]
    with subprocess.Popen(command) as process:
        while resource.prlimit(process.pid, MEMLOCK)[0] != LOW:
            pass
        yield process.pid
        process.kill()


def hook(program: Program, state: object, *arguments: str) -> subprocess.CompletedProcess[str]:
    text = state if isinstance(state, str) else json.dumps(state)
    command = [program.path, *arguments]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False, env={})


def state(pid: int) -> dict[str, object]:
    """As runc 1.1.5 writes it."""
    return {
        "ociVersion": "1.0.2-dev",
        "id": "c",
        "status": "creating",
        "pid": pid,
        "bundle": "/run/b",
        "annotations": {"pid": "1"},
    }


@pytest.mark.parametrize("arguments", [[str(HARD)], [str(HARD), "required"]])
def test_limit_is_raised(program: Program, container: int, arguments: list[str]) -> None:
    done = hook(program, state(container), "memlock", *arguments)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert resource.prlimit(container, MEMLOCK) == (HARD, HARD)


@pytest.mark.parametrize("amount", ["0", "1", str(LOW)])
def test_limit_is_never_lowered(program: Program, container: int, amount: str) -> None:
    assert hook(program, state(container), "memlock", amount, "required").returncode == 0
    assert resource.prlimit(container, MEMLOCK) == (LOW, HARD)


@pytest.mark.parametrize("required", [False, True])
def test_limit_that_cannot_be_raised_fails_the_container_only_if_required(
    program: Program, container: int, required: bool
) -> None:
    try:
        resource.prlimit(container, MEMLOCK, (LOW, HARD + 1))
    except PermissionError:
        done = hook(program, state(container), "memlock", "unlimited", *["required"] * required)
        assert done.returncode == required
        assert done.stderr == (
            "k8s-rdma-cni: the container may not lock unlimited bytes: prlimit RLIMIT_MEMLOCK: "
            "Operation not permitted\n"
        )
        assert resource.prlimit(container, MEMLOCK) == (LOW, HARD)
    else:  # with CAP_SYS_RESOURCE
        assert hook(program, state(container), "memlock", "unlimited").returncode == 0
        assert resource.prlimit(container, MEMLOCK) == (resource.RLIM_INFINITY, resource.RLIM_INFINITY)


@pytest.mark.parametrize(
    "given",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"pid": "7"}',
        '{"pid": 0}',
        '{"pid": 1}',
        '{"pid": -1}',
        '{"pid": 7.5}',
        '{"pid": 4294967296}',
        '{"pid": 99999999999999999999}',
    ],
)
def test_state_without_a_process_is_refused(program: Program, given: str) -> None:
    done = hook(program, given, "memlock", "1024", "required")
    assert done.returncode == 1
    assert "its state on standard input: Invalid argument" in done.stderr
    assert hook(program, given, "memlock", "1024").returncode == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["memlock"],
        ["memlock", ""],
        ["memlock", "much"],
        ["memlock", "-1"],
        ["memlock", "1G"],
        ["memlock", "18446744073709551615"],
        ["memlock", "1", "perhaps"],
        ["memlock", "1", "required", "more"],
    ],
)
def test_other_arguments_are_refused_with_the_known_ones(
    program: Program, container: int, arguments: list[str]
) -> None:
    done = hook(program, state(container), *arguments)
    assert done.returncode == 1
    assert done.stderr.endswith("usage of the OCI hook: memlock BYTES|unlimited [required]\n")
    assert resource.prlimit(container, MEMLOCK) == (LOW, HARD)
