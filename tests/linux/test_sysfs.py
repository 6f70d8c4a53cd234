"""Files as sysfs has them: those without a value, those that vanish, those one may not see."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from k8s_rdma.linux.sysfs import Sysfs, is_absent

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def sysfs(tmp_path: Path) -> Sysfs:
    device = tmp_path / "devices/pci0000:20/0000:20:00.0"
    (device / "speed").mkdir(parents=True)  # refuses to be read
    (device / "numa_node").write_text("-1\n")
    (device / "vendor").write_text("0x15b3\n")
    (device / "class").write_text("network\n")
    (tmp_path / "bus").mkdir()
    (tmp_path / "bus/card").symlink_to("../devices/pci0000:20/0000:20:00.0")
    return Sysfs(tmp_path)


def test_values_come_without_the_newline_and_numbers_in_both_notations(sysfs: Sysfs) -> None:
    assert sysfs.value("bus/card/vendor") == "0x15b3"
    assert sysfs.number("bus/card/vendor") == 0x15B3
    assert sysfs.number("bus/card/numa_node") == -1


def test_file_that_refuses_to_be_read_has_no_value(sysfs: Sysfs) -> None:
    assert sysfs.value("bus/card/speed") is None
    assert sysfs.number("bus/card/speed") is None


def test_missing_file_is_an_error_unless_requested_otherwise(sysfs: Sysfs) -> None:
    for ask in (sysfs.value, sysfs.number, sysfs.names, sysfs.target, sysfs.resolved):
        with pytest.raises(OSError, match="no_such") as caught:
            ask("bus/card/no_such")
        assert is_absent(caught.value)
    for ask in (sysfs.value_if_any, sysfs.number_if_any, sysfs.names_if_any, sysfs.target_if_any):
        assert ask("bus/card/no_such") is None


def test_path_below_a_file_is_gone_too(sysfs: Sysfs) -> None:
    assert sysfs.value_if_any("bus/card/vendor/deeper") is None


def test_unreadable_file_is_never_absent(sysfs: Sysfs) -> None:
    class Forbidden(Sysfs):
        def read(self, path: str) -> str:
            raise PermissionError(errno.EACCES, "not allowed", path)

        def names(self, path: str) -> list[str]:
            raise PermissionError(errno.EPERM, "not allowed", path)

    forbidden = Forbidden()
    for ask in (forbidden.value_if_any, forbidden.number_if_any, forbidden.names_if_any):
        with pytest.raises(PermissionError):
            ask("bus/card/vendor")


def test_text_instead_of_a_number_is_an_error_that_shows_it(sysfs: Sysfs) -> None:
    with pytest.raises(OSError, match="not a number: 'network'") as caught:
        sysfs.number("bus/card/class")
    assert not is_absent(caught.value)


def test_empty_directory_is_not_a_missing_one(sysfs: Sysfs) -> None:
    assert sysfs.names_if_any("bus/card/speed") == []


def test_links_are_followed_below_the_root(sysfs: Sysfs) -> None:
    assert sysfs.target("bus/card") == "0000:20:00.0"
    assert sysfs.resolved("bus/card") == "devices/pci0000:20/0000:20:00.0"


def test_write_is_for_files_that_exist(sysfs: Sysfs) -> None:
    sysfs.write("bus/card/numa_node", "1")
    assert sysfs.number("bus/card/numa_node") == 1
    with pytest.raises(FileNotFoundError):
        sysfs.write("bus/card/sriov_numvfs", "4")


def test_name_that_is_no_text_is_the_same_in_a_file_and_as_the_name_of_one(tmp_path):
    """So that an RDMA device is found which a pod gave such a name."""
    name = os.fsdecode(b"x\xff")
    (tmp_path / name).mkdir()
    (tmp_path / "ibdev").write_bytes(b"x\xff\n")
    sysfs = Sysfs(tmp_path)
    assert sysfs.value("ibdev") == name
    assert name in sysfs.names("")
    assert sysfs.names(name) == []
