"""YAML as kubectl reads kubeconfig files, with the bounds of `wire.yaml`.

Of several documents the first counts. Of a key that stands twice in one mapping the last value counts. A tab
may stand wherever no indentation is. Bytes with a byte order mark may be UTF-16. Binary values are text, and
timestamps are the text that they were written as. An anchor may be used again.

Source: `YAMLToJSON` in sigs.k8s.io/yaml; `yaml_parser_scan_to_next_token` and
`yaml_parser_determine_encoding` in go-yaml 2.
"""

from __future__ import annotations

from base64 import b64decode
from typing import Any

import yaml

from k8s_rdma.wire.yaml import Bounded

_BREAKS = "\0\r\n\x85\u2028\u2029"


class _GoLoader(Bounded, yaml.SafeLoader):
    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose a node, whose anchor replaces an earlier one of that name."""
        reader: Any = self
        event = reader.peek_event()
        if not isinstance(event, yaml.AliasEvent):
            reader.anchors.pop(event.anchor, None)
        return super().compose_node(parent, index)

    def scan_to_next_token(self) -> None:
        """Skip spaces, comments, line breaks, and tabs that are no indentation."""
        reader: Any = self  # the scanner has no types
        if reader.index == 0 and reader.peek() == "\ufeff":
            reader.forward()
        while True:
            while reader.peek() == " " or (
                reader.peek() == "\t" and (reader.flow_level or not reader.allow_simple_key)
            ):
                reader.forward()
            if reader.peek() == "#":
                while reader.peek() not in _BREAKS:
                    reader.forward()
            if not reader.scan_line_break():
                return
            if not reader.flow_level:
                reader.allow_simple_key = True


def _text(loader: _GoLoader, node: yaml.ScalarNode) -> str:
    return str(loader.construct_scalar(node))


def _binary(loader: _GoLoader, node: yaml.ScalarNode) -> str:
    try:
        return b64decode("".join(_text(loader, node).split()), validate=True).decode(errors="replace")
    except ValueError:
        raise yaml.constructor.ConstructorError(
            None, None, "!!binary value contains invalid base64 data", node.start_mark
        ) from None


_GoLoader.add_constructor("tag:yaml.org,2002:timestamp", _text)
_GoLoader.add_constructor("tag:yaml.org,2002:binary", _binary)


def read_go_yaml(data: bytes) -> Any:
    """Read the first document, if the text has one. yaml.YAMLError names the line of a fault."""
    loader: Any = _GoLoader(data)
    try:
        return loader.get_data() if loader.check_data() else None
    finally:
        loader.dispose()
