"""Import every module of what is installed, warnings as errors, and print how many there are.

The image leaves the demo and simulations out.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
import warnings

PACKAGES = ("k8s_rdma", "k8s_rdma_demo", "k8s_rdma_simulation")


def names() -> list[str]:
    """All modules of the packages; `__main__` runs the command and is left out."""
    roots = [name for name in PACKAGES if importlib.util.find_spec(name)]
    paths = {name: importlib.import_module(name).__path__ for name in roots}
    found = [
        module
        for name, path in paths.items()
        for module in pkgutil.walk_packages(path, f"{name}.", onerror=_fail)
    ]
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
