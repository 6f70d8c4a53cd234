"""Types of the core: PCI addresses in one form, and names in messages."""

from __future__ import annotations

import pytest

from k8s_rdma.core.types import VIRTUAL_DRIVER, Gang, GangApi, enforcer_of, pci_address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("03:00.1", "0000:03:00.1"),
        ("0000:03:1F.7", "0000:03:1f.7"),
        (" 10000:e1:00.0\n", "10000:e1:00.0"),
    ],
)
def test_pci_address_is_in_the_kernels_full_form(text: str, address: str) -> None:
    assert pci_address(text) == address
    assert pci_address(address) == address


@pytest.mark.parametrize("text", ["", "03:00", "03:00.8", "03:20.0", "3:00.0", "000:03:00.0", "03:00.0 x"])
def test_text_that_is_no_pci_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a PCI address"):
        pci_address(text)


def test_virtual_pfs_enforce_by_software() -> None:
    assert [enforcer_of(driver) for driver in (VIRTUAL_DRIVER, "ice")] == ["software", "hardware"]


def test_gang_is_named_with_its_namespace() -> None:
    assert str(Gang(api=GangApi.KUBERNETES, namespace="n", name="g")) == "n/g"
