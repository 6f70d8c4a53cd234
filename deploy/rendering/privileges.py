"""The table of `docs/permissions.md`: what each container may do on its node and in the cluster."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from deploy.rendering.chart import documents, render

PAGE = Path(__file__).parents[2] / "docs/permissions.md"
BEGIN, END = "<!-- privileges -->\n", "<!-- /privileges -->\n"
HEAD = (
    "| container | user | capabilities | network | confined by | writes | reads | API server |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- |\n"
)

Json = dict[str, Any]


def table() -> str:
    """Markdown; a row for each container of the chart by its defaults, with `dra.enabled`, and the pages'."""
    with_pages = _rows({"viewers": {"enabled": True}, "web": {"enabled": True}})
    rows = [*_rows({"dra": {"enabled": True}}), *(row for row in with_pages if row[0] == "`web`")]
    return HEAD + "".join("| " + " | ".join(row) + " |\n" for row in rows)


def _rows(values: Json) -> list[tuple[str, ...]]:
    objects = documents(render(values))
    workloads = (each for each in objects if each["kind"] in {"DaemonSet", "Deployment"})
    pods = [each["spec"]["template"]["spec"] for each in workloads]
    return [
        _row(each, pod, objects)
        for pod in pods
        for each in [*pod.get("initContainers", ()), *pod["containers"]]
    ]


def with_table(page: str) -> str:
    """The page with the table of now between its marks."""
    return re.sub(f"{BEGIN}.*{END}", lambda _: BEGIN + table() + END, page, flags=re.DOTALL)


def write_table() -> None:
    """Write it into the page."""
    PAGE.write_text(with_table(PAGE.read_text()))


def _row(container: Json, pod: Json, objects: list[Json]) -> tuple[str, ...]:
    security = container["securityContext"]
    added = security.get("capabilities", {}).get("add", ())
    user = str(security.get("runAsUser", 0)) + (
        "" if security["readOnlyRootFilesystem"] else ", own root writable"
    )
    return (
        f"`{container['name']}`",
        user,
        "all: privileged" if security.get("privileged") else ", ".join(added) or "none",
        _network(container, pod),
        _confinement(security, pod),
        _mounts(container, pod, read_only=False),
        _mounts(container, pod, read_only=True),
        _rights(container, pod, objects),
    )


def _network(container: Json, pod: Json) -> str:
    ports = [str(each["containerPort"]) for each in container.get("ports", ())]
    where = "the node's" if pod.get("hostNetwork") else "the pod's"
    return f"{where}; TCP {', '.join(ports)}" if ports else where


def _confinement(security: Json, pod: Json) -> str:
    domain = pod["securityContext"].get("seLinuxOptions", {}).get("type")
    selinux = f"SELinux `{domain}`" if domain else "SELinux"
    if security.get("privileged"):
        return selinux
    apparmor = security.get("appArmorProfile", {}).get("type") != "Unconfined"
    return ", ".join([*(["AppArmor"] if apparmor else []), selinux, "seccomp"])


def _mounts(container: Json, pod: Json, *, read_only: bool) -> str:
    volumes = {each["name"]: each for each in pod["volumes"]}
    said = [
        _mount(each, volumes[each["name"]])
        for each in container["volumeMounts"]
        if each.get("readOnly", False) is read_only
    ]
    return ", ".join(each for each in said if each) or "nothing"


def _mount(mount: Json, volume: Json) -> str:
    path = f"`{mount['mountPath']}`"
    if "hostPath" in volume:
        of_node = volume["hostPath"]["path"]
        return path if of_node == mount["mountPath"] else f"the node's `{of_node}` at {path}"
    if "secret" in volume:
        return f"Secret `{volume['secret']['secretName']}`"
    sources = volume.get("projected", {}).get("sources", ())
    if secrets := [f"`{each['secret']['name']}`" for each in sources if "secret" in each]:
        return f"Secrets {' and '.join(secrets)}"
    return "ConfigMap" if "configMap" in volume else ""


def _rights(container: Json, pod: Json, objects: list[Json]) -> str:
    token = any(each["name"] == "api" for each in container["volumeMounts"])
    if not token and pod.get("automountServiceAccountToken", True) is False:
        return "none"
    roles = {
        (each["kind"], each["metadata"]["name"]): each for each in objects if each["kind"].endswith("Role")
    }
    bound = [
        each["roleRef"]
        for each in objects
        if each["kind"].endswith("RoleBinding") and each["subjects"][0]["name"] == pod["serviceAccountName"]
    ]
    said: list[str] = []
    for each in bound:
        role = roles.get((each["kind"], each["name"]))
        said += [f"role `{each['name']}`"] if role is None else map(_rule, role["rules"])
    return "; ".join(dict.fromkeys(said))


def _rule(rule: Json) -> str:
    resources = ", ".join(f"`{each}`" for each in rule["resources"])
    names = f" {', '.join(rule['resourceNames'])}" if "resourceNames" in rule else ""
    return f"{resources}{names}: {', '.join(rule['verbs'])}"
