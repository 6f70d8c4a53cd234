from __future__ import annotations

from pathlib import Path

import pytest

from k8s_rdma.config.devices import load_device_config

EXAMPLES = Path(__file__).parents[2] / "examples/device-plugin"
FILES = [
    path
    for path in sorted(EXAMPLES.iterdir())
    if path.suffix != ".md" and "kind: Pod" not in path.read_text()
]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_example_is_a_configuration(path: Path) -> None:
    read = load_device_config(str(path), {})
    assert read.config.resources
    assert read.ignored == ()


def test_there_is_an_example_of_each_mode() -> None:
    resources = [each for path in FILES for each in load_device_config(str(path), {}).config.resources]
    modes = {type(each).__struct_config__.tag for each in resources}
    assert modes == {"exact", "mount", "exclusive", "shared"}
