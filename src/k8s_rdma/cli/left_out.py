"""Commands whose packages are in the wheel and not in the container image, because no node runs them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from k8s_rdma.errors import K8sRdmaError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def left_out_of_the_image(package: str, command: str) -> Iterator[None]:
    """Import from `package` inside; if it is not installed, raise K8sRdmaError with the way to install it.

    command: its name, for example `demo`.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != package:
            raise
        msg = (
            f"{command} is not installed: the container image leaves it out. "
            "Install the k8s-rdma wheel with pip, or run it in a checkout"
        )
        raise K8sRdmaError(msg) from error
