"""Import every module of the installed package, warnings as errors, and print how many there are."""

from __future__ import annotations

import importlib
import pkgutil
import sys
import warnings

import k8s_rdma


def names() -> list[str]:
    """All modules of the package; `__main__` runs the command and is left out."""
    found = pkgutil.walk_packages(k8s_rdma.__path__, "k8s_rdma.", onerror=_fail)
    return [module.name for module in found if not module.name.endswith(".__main__")]


def _fail(name: str) -> None:
    msg = f"cannot import {name}"
    raise ImportError(msg)


if __name__ == "__main__":
    warnings.simplefilter("error")
    modules = names()
    for module in modules:
        importlib.import_module(module)
    sys.stdout.write(f"{len(modules)}\n")
