"""System calls that a container may make, by the profile of podman and buildah.

It comes with them (Debian package golang-github-containers-common). Its rules depend on capabilities and
architecture, which runc does not know. Source: containers/common, pkg/seccomp/types.go; OCI runtime
specification 1.0.2, "config-linux", Seccomp.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection

PROFILE = Path("/usr/share/containers/seccomp.json")


def filter_for(architecture: str, capabilities: Collection[str]) -> dict[str, Any] | None:
    """Return the profile, if it exists, as runc takes it, for these capabilities (`CAP_...`)."""
    if not PROFILE.exists():
        return None
    profile = json.loads(PROFILE.read_text())
    return {
        "defaultAction": profile["defaultAction"],
        "defaultErrnoRet": profile["defaultErrnoRet"],
        "syscalls": [
            _rule(entry) for entry in profile["syscalls"] if _applies(entry, architecture, capabilities)
        ],
    }


def _applies(entry: dict[str, Any], architecture: str, capabilities: Collection[str]) -> bool:
    includes, excludes = entry["includes"] or {}, entry["excludes"] or {}
    return (
        set(includes.get("caps", ())) <= set(capabilities)
        and not set(excludes.get("caps", ())) & set(capabilities)
        and architecture in includes.get("arches", [architecture])
    )


def _rule(entry: dict[str, Any]) -> dict[str, Any]:
    return {key: entry[key] for key in ("names", "action", "args", "errnoRet") if entry.get(key)}
