"""Mentions of pods and claims in texts: the words that name one, so that a reader's view can leave them out.

A text that one tenant reads, such as an event of its pod, must not name the pods of others. So the writer of
a text with a name passes on the name as data, and the view that shows it knows its readers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

_POD = re.compile(r"(?<![\w.-])pod ([a-z0-9][-a-z0-9]*)/([a-z0-9][-a-z0-9.]*[a-z0-9]|[a-z0-9])")

MAX_LISTED = 3
"""The number of pods that a text names; others are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mention:
    """A pod or a claim that a text names. text: the words that do, such as `pod team-a/train`."""

    namespace: str
    text: str
    instead: str = "a pod of another namespace"


def pod_mention(namespace: str, name: str) -> Mention:
    """Return the mention of a pod by `pod NAMESPACE/NAME`."""
    return Mention(namespace=namespace, text=f"pod {namespace}/{name}")


def pods_named(text: str) -> tuple[Mention, ...]:
    """Find the pods that a text names by `pod NAMESPACE/NAME`: an older writer passes on no mentions."""
    return tuple(pod_mention(namespace, name) for namespace, name in _POD.findall(text))


def shown(text: str, mentions: Iterable[Mention], visible: Callable[[str], bool]) -> str:
    """Return a text without the names of namespaces that its reader may not see.

    A name that is the beginning of another name is not replaced there.

    visible: reports whether the reader may see a namespace.
    """
    for mention in sorted(mentions, key=lambda mention: -len(mention.text)):
        if not visible(mention.namespace):
            text = re.sub(rf"(?<![\w.-]){re.escape(mention.text)}(?![\w/-]|[.]\w)", mention.instead, text)
    return text


def listed_for(namespace: str, pods: Collection[str]) -> str:
    """List pods, `namespace/name`, for people who see those of one namespace alone; count all others."""
    own = [pod for pod in pods if pod.startswith(f"{namespace}/")]
    names, hidden = own[:MAX_LISTED], len(pods) - len(own)
    further = f"{len(own) - len(names)} more" if len(own) > len(names) else ""
    elsewhere = f"{hidden} of other namespaces" if hidden else ""
    return " and ".join(filter(None, (", ".join(names), further, elsewhere)))
