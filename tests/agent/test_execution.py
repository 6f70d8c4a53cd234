"""How plugins of the node are found, asked for their versions, run and given up."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from agent.machine import PLUGINS, needs_host_local
from agent.scripted_plugin import ERROR, MODERN, ScriptedPlugin
from k8s_rdma.agent.plugins.execution import Plugins, PluginTarget
from k8s_rdma.core.ledger import DelegatedPlugin
from k8s_rdma.errors import K8sRdmaError, Reason

TARGET = PluginTarget(container="c1", netns="/run/netns/c1", ifname="rdma0")
needs_root = pytest.mark.skipif(
    subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode != 0,
    reason="needs root, and leave to unshare",
)


@pytest.fixture
def script(tmp_path):
    return ScriptedPlugin(tmp_path)


@pytest.fixture
def plugins():
    return Plugins(host_root=Path("/"), timeout_s=30)


def run(plugins, script, verb="ADD", stdin=b'{"a":1}', target=TARGET):
    return asyncio.run(plugins.run(script.plugin(), verb, stdin, target))


def failure(plugins, script, **how):
    with pytest.raises(K8sRdmaError) as caught:
        run(plugins, script, **how)
    return caught.value


def test_plugin_is_called_with_the_variables_and_the_configuration_of_the_call(plugins, script):
    script.speak(MODERN, ADD="echo -n '{}'")
    assert run(plugins, script) == b"{}"
    [call] = script.calls()
    assert call.command == "ADD"
    assert (call.container, call.netns, call.ifname) == ("c1", "/run/netns/c1", "rdma0")
    assert (call.args, call.path) == ("IgnoreUnknown=1;K8S_POD_NAME=p", f"/nowhere:{script.file.parent}")
    assert call.directory == "/"
    assert call.stdin == {"a": 1}


def test_plugin_gets_no_container_if_the_call_is_about_none(plugins, script):
    run(plugins, script, verb="STATUS", target=None)
    [call] = script.calls()
    assert (call.container, call.netns, call.ifname, call.args) == ("", "", "", "")


def test_error_names_plugin_and_call_with_the_message_of_the_plugin(plugins, script):
    script.speak(MODERN, ADD=ERROR)
    error = failure(plugins, script)
    assert error.message == "plugin scripted: ADD of rdma0: no; more"
    assert error.details == "on stderr"
    assert error.reason is Reason.IPAM_FAILURE


def test_error_has_the_exit_status_if_the_plugin_prints_no_message(plugins, script):
    script.speak(MODERN, ADD="exit 3")
    assert failure(plugins, script).message == "plugin scripted: ADD of rdma0: exit status 3"


def test_error_says_the_signal_that_killed_the_plugin(plugins, script):
    script.speak(MODERN, ADD="kill -9 $$")
    said = failure(plugins, script).message
    assert said == "plugin scripted: ADD of rdma0: killed by signal 9 (Killed)"


def test_error_has_the_reason_that_the_caller_wants(script):
    plugins = Plugins(host_root=Path("/"), timeout_s=30, reason=Reason.PLUGIN_FAILURE)
    script.speak(MODERN, ADD="exit 3")
    assert failure(plugins, script).reason is Reason.PLUGIN_FAILURE


def test_error_lists_the_searched_directories(plugins, script):
    script.file.chmod(0o644)
    error = failure(plugins, script)
    assert error.message == (
        f"plugin 'scripted' is not in CNI_PATH '/nowhere:{script.file.parent}' (below /); "
        "install it on the node"
    )
    with pytest.raises(K8sRdmaError, match="is not in CNI_PATH"):
        plugins.require(script.plugin())
    script.file.chmod(0o755)
    plugins.require(script.plugin())


def test_plugin_that_is_a_directory_is_not_found(plugins, script):
    script.file.unlink()
    script.file.mkdir()
    assert "is not in CNI_PATH" in failure(plugins, script).message


def test_error_says_why_the_file_cannot_be_run(plugins, script):
    script.file.write_text("#!/nowhere/interpreter\n")
    error = failure(plugins, script)
    assert error.message == "plugin scripted: ADD of rdma0: exit status 127"
    assert "No such file" in error.details


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def children_of(script):
    told = script.directory / "pids"
    return [int(pid) for pid in told.read_text().split()] if told.exists() else []


HANGS = "sleep 1000 & echo $! $$ >{directory}/pids; wait"


async def until(condition):
    async with asyncio.timeout(120):
        while not condition():  # noqa: ASYNC110  it is another process that makes it so
            await asyncio.sleep(0.01)


async def gone(pids):
    await until(lambda: not any(map(alive, pids)))


def test_plugin_is_killed_with_its_children_when_it_takes_too_long(script):
    script.speak(MODERN, ADD=HANGS.format(directory=script.directory))
    plugins = Plugins(host_root=Path("/"), timeout_s=1)

    async def scenario():
        with pytest.raises(K8sRdmaError, match="plugin scripted: ADD of rdma0: no answer within 1 s"):
            await plugins.run(script.plugin(), "ADD", b"{}", TARGET)
        await gone(children_of(script))

    asyncio.run(scenario())


def test_plugin_is_killed_with_its_children_when_its_call_is_cancelled(script, plugins):
    script.speak(MODERN, ADD=HANGS.format(directory=script.directory))

    async def scenario():
        call = asyncio.create_task(plugins.run(script.plugin(), "ADD", b"{}", TARGET))
        await until(lambda: children_of(script))
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await gone(children_of(script))

    asyncio.run(scenario())


def test_plugin_of_a_cancelled_call_ends_its_writes(script, plugins):
    lease, begun = script.directory / "lease", script.directory / "begun"
    script.speak(MODERN, ADD=f"touch {lease} {begun}; sleep 0.2; echo c0 >{lease}")

    async def scenario():
        call = asyncio.create_task(plugins.run(script.plugin(), "ADD", b"{}", TARGET))
        await until(begun.exists)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    asyncio.run(scenario())
    assert lease.read_text() == "c0\n"


ENDLESS = "yes 0123456789012345678901234567890123456789012345678901234567890"


def test_plugin_that_prints_without_end_is_killed_with_its_children(script, plugins):
    script.speak(MODERN, ADD=f"echo $$ >{script.directory}/pids; echo why >&2; {ENDLESS} | cat")
    error = failure(plugins, script)
    assert (error.message, error.details) == (
        "plugin scripted: ADD of rdma0: it prints more than 8 MiB",
        "why",
    )
    asyncio.run(gone(children_of(script)))


def test_result_of_some_mebibytes_is_heard(script, plugins):
    size = 7 << 20
    script.speak(MODERN, ADD=f"head -c {size} /dev/zero")
    assert run(plugins, script) == bytes(size)


def test_error_has_the_end_of_stderr_of_a_plugin_that_logs_too_much(script, plugins):
    script.speak(MODERN, ADD=f"{ENDLESS} | head -c 20000000 >&2; echo the end >&2; exit 1")
    details = failure(plugins, script).details
    assert details.endswith("the end")
    assert len(details) <= 2000


def test_time_limit_holds_for_a_plugin_that_logs_without_end(script):
    script.speak(MODERN, ADD=f"{ENDLESS} >&2")
    error = failure(Plugins(host_root=Path("/"), timeout_s=1), script)
    assert error.message == "plugin scripted: ADD of rdma0: no answer within 1 s"


def test_time_limit_holds_although_a_daemon_keeps_the_output_of_an_ended_plugin(script):
    pids = script.directory / "pids"
    script.speak(MODERN, ADD=f"setsid sh -c 'echo $$ >{pids}; exec sleep 1000' & exit 0")
    before = set(Path("/proc/self/fd").iterdir())
    try:
        error = failure(Plugins(host_root=Path("/"), timeout_s=1), script)
        assert error.message == "plugin scripted: ADD of rdma0: no answer within 1 s"
        assert set(Path("/proc/self/fd").iterdir()) <= before
    finally:
        os.kill(int(pids.read_text()), signal.SIGKILL)


def test_plugin_need_not_read_its_configuration(tmp_path, plugins):
    file = tmp_path / "deaf"
    file.write_text("#!/bin/sh\nexec <&-; echo -n '{}'\n")
    file.chmod(0o755)
    deaf = DelegatedPlugin(plugin="deaf", netconf=b"{}", cni_path=str(tmp_path), cni_args="")
    assert asyncio.run(plugins.run(deaf, "ADD", bytes(1 << 20), TARGET)) == b"{}"


@pytest.mark.parametrize("names", [{"plugin": "x" * 300}, {"cni_path": "/" + "x" * 5000}])
def test_name_that_no_file_can_have_is_not_in_the_path(plugins, script, names):
    with pytest.raises(K8sRdmaError, match="is not in CNI_PATH"):
        plugins.require(replace(script.plugin(), **names))


def test_plugin_dies_with_the_process_that_called_it(script):
    script.speak(MODERN, ADD=f"echo $$ >{script.directory}/pids; exec sleep 1000")
    agent = subprocess.Popen(calling(script))

    async def scenario():
        await until(lambda: children_of(script) or agent.poll() is not None)
        agent.send_signal(signal.SIGKILL)
        await gone(children_of(script))

    try:
        asyncio.run(scenario())
    finally:
        agent.kill()
        agent.wait()


def test_plugin_gets_no_input_from_a_process_that_died_before_their_lives_were_tied(script, tmp_path):
    script.speak(MODERN, ADD="echo -n '{}'")
    slow = tmp_path / "slow"
    slow.mkdir()
    begun, real = slow / "begun", shutil.which("setpriv")
    source = SLOW_SETPRIV.format(begun=begun, real=real)
    subprocess.run(["cc", "-x", "c", "-o", slow / "setpriv", "-"], input=source, text=True, check=True)
    path = f"{slow}:{os.environ['PATH']}"
    agent = subprocess.Popen(calling(script), env=os.environ | {"PATH": path})

    async def scenario():
        await until(lambda: begun.exists() or agent.poll() is not None)
        agent.send_signal(signal.SIGKILL)
        await until(lambda: script.calls("ADD"))

    try:
        asyncio.run(scenario())
    finally:
        agent.kill()
        agent.wait()
    assert script.calls("ADD")[0].stdin == {}


SLOW_SETPRIV = """
#include <fcntl.h>
#include <unistd.h>
int main(int count, char **given) {{
  close(creat("{begun}", 0600));
  sleep(1);
  return execv("{real}", given);
}}
"""


def calling(script):
    """A process that calls it."""
    code = (
        "import asyncio, sys; from pathlib import Path; from k8s_rdma.agent.plugins.execution import *;"
        "from k8s_rdma.core.ledger import DelegatedPlugin;"
        "plugin = DelegatedPlugin(plugin='scripted', netconf=b'{}', cni_path=sys.argv[1], cni_args='');"
        "target = PluginTarget(container='c', netns='', ifname='i');"
        "asyncio.run(Plugins(host_root=Path('/'), timeout_s=90).run(plugin, 'ADD', b'{\"a\":1}', target))"
    )
    return [sys.executable, "-c", code, str(script.file.parent)]


def test_versions_are_requested_once_per_file(plugins, script):
    async def scenario():
        for _ in range(3):
            assert await plugins.versions(script.plugin()) == MODERN
        assert len(script.calls("VERSION")) == 1
        script.speak(("0.3.1",))
        assert await plugins.versions(script.plugin()) == ("0.3.1",)
        assert len(script.calls("VERSION")) == 2

    asyncio.run(scenario())
    # Plugins that were built with an old libcni check these although VERSION does not need them.
    assert script.calls()[0].container == script.calls()[0].ifname == "dummy"


@pytest.mark.parametrize(
    ("theirs", "at_most", "agreed"),
    [
        (("0.1.0", "0.2.0", "1.0.0", "1.1.0", "2.0.0"), "1.1.0", "1.1.0"),
        (("0.4.0", "1.0.0"), "1.1.0", "1.0.0"),
        (("1.0.0", "0.4.0", "0.3.1"), "0.4.0", "0.4.0"),
        (("0.2.0",), "1.1.0", "0.2.0"),
    ],
)
def test_version_agreed_is_the_highest_that_all_know(plugins, script, theirs, at_most, agreed):
    script.speak(theirs)
    assert asyncio.run(plugins.negotiate(script.plugin(), at_most)) == agreed


def test_version_is_not_agreed_without_a_common_one(plugins, script):
    script.speak(("1.0.0", "9.0.0"))
    with pytest.raises(
        K8sRdmaError, match=r"scripted speaks CNI 1\.0\.0, 9\.0\.0, none .* 0\.4\.0"
    ) as caught:
        asyncio.run(plugins.negotiate(script.plugin(), "0.4.0"))
    assert caught.value.reason is Reason.INCOMPATIBLE_CNI_VERSION


@pytest.mark.parametrize("said", ["echo no JSON", "echo '{}'", "true", "echo '{\"supportedVersions\":[1]}'"])
def test_version_is_not_agreed_when_the_plugin_does_not_tell_any(plugins, script, said):
    script.write(said)
    with pytest.raises(K8sRdmaError, match="plugin scripted does not tell its versions: VERSION result"):
        asyncio.run(plugins.negotiate(script.plugin()))


@needs_host_local
def test_real_plugin_reports_its_versions(plugins):
    host_local = DelegatedPlugin(plugin="host-local", netconf=b"{}", cni_path=PLUGINS, cni_args="")
    assert "1.0.0" in asyncio.run(plugins.versions(host_local))


def make_root(root: Path, program: Path, place: str) -> None:
    """Make a root file system with a program, its libraries, and a `/proc` without our processes."""
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout.split()
    libraries = [Path(word) for word in listed if word.startswith("/")]
    for file in (program, *libraries):
        copy = root / (place if file == program else file.relative_to("/"))
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy)
    (root / "proc").mkdir()


def looking(root: Path, condition: str) -> DelegatedPlugin:
    """A plugin in a root file system of its own; it prints `found` if the condition holds there."""
    make_root(root, Path(shutil.which("sh") or ""), "bin/sh")
    plugin = root / "looks"
    plugin.write_text(f"#!/bin/sh\nread -r line\n{condition} && echo found\n")
    plugin.chmod(0o755)
    return DelegatedPlugin(plugin="looks", netconf=b"{}", cni_path="/", cni_args="")


@needs_root
def test_plugin_in_the_hosts_root_finds_itself_in_proc(tmp_path):
    """As those do that compare their network namespace with the pod's, though the host's has other pids."""
    looks = looking(tmp_path, "[ -e /proc/$$/task/$$/ns/net ]")
    plugins = Plugins(host_root=tmp_path, timeout_s=30)
    assert asyncio.run(plugins.run(looks, "ADD", b"{}\n", TARGET)) == b"found\n"
    assert list((tmp_path / "proc").iterdir()) == []


@needs_root
def test_plugin_in_the_hosts_root_finds_a_namespace_in_the_hosts_proc(tmp_path):
    """As runtimes name it that do not use `/run/netns`; the pid is the host's."""
    looks = looking(tmp_path, '[ -e "$CNI_NETNS" ]')
    netns = Path("/proc/4000000000/ns/net")  # higher than any of ours
    file = tmp_path / netns.relative_to("/")
    file.parent.mkdir(parents=True)
    file.touch()
    plugins = Plugins(host_root=tmp_path, timeout_s=30)
    target = replace(TARGET, netns=str(netns))
    assert asyncio.run(plugins.run(looks, "ADD", b"{}\n", target)) == b"found\n"


def mount(*arguments: str | Path) -> None:
    subprocess.run(["mount", *arguments], check=True)


@needs_root
def test_plugin_in_the_root_of_the_host_keeps_no_mount_that_the_host_unmounts(tmp_path):
    """A namespace that a runtime ends while a plugin hangs would live on, with its VFs."""
    root = tmp_path / "root"
    root.mkdir()
    mount("--bind", root, root)
    mount("--make-shared", root)
    mounted = (
        'while read -r line; do case "$line" in *" /volume "*) return 0; esac; done </proc/self/mountinfo'
    )
    script = f"{{ mounted() {{ {mounted}; return 1; }}; : >/started; while mounted; do :; done; }}"
    waits = looking(root, script)
    (root / "volume").mkdir()
    mount("-t", "tmpfs", "tmpfs", root / "volume")

    host = f"until [ -e {root}/started ]; do sleep 0.01; done; umount {root}/volume"
    plugins = Plugins(host_root=root, timeout_s=10)
    try:
        with subprocess.Popen(["sh", "-c", host]):
            assert asyncio.run(plugins.run(waits, "ADD", b"{}\n", TARGET)) == b"found\n"
    finally:
        subprocess.run(["umount", "--recursive", "--lazy", root], check=True)


@needs_host_local
@needs_root
def test_plugin_runs_in_the_hosts_root_when_that_is_mounted_elsewhere(tmp_path):
    """As for agents in a container: paths that are absolute there are absolute on the node, links as well."""
    make_root(tmp_path, Path(shutil.which("host-local", path=PLUGINS) or ""), "home/cni/host-local")
    (tmp_path / "opt").mkdir()
    (tmp_path / "opt/cni").symlink_to("/home/cni")
    ipam = b'{"type":"host-local","ranges":[[{"subnet":"10.0.0.0/24"}]]}'
    netconf = b'{"cniVersion":"1.0.0","name":"n","ipam":%s}' % ipam
    host_local = DelegatedPlugin(plugin="host-local", netconf=netconf, cni_path="/opt/cni", cni_args="")
    plugins = Plugins(host_root=tmp_path, timeout_s=30)
    assert b"10.0.0.2/24" in asyncio.run(plugins.run(host_local, "ADD", netconf, TARGET))
    assert (tmp_path / "var/lib/cni/networks/n/10.0.0.2").exists()
