"""Looks when something has changed; what has not is not asked for again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Self, TypeVar

from k8s_rdma.linux.changes import Changes
from k8s_rdma.linux.netlink.subscriptions import EVERYTHING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from pathlib import Path

    from k8s_rdma.linux.netlink.subscriptions import Subscription

T = TypeVar("T")


class Lookout(Generic[T]):
    """Looks at one thing again and again; of one thread at a time."""

    def __init__(
        self,
        observe: Callable[[Collection[int] | None], T],
        *,
        files: Callable[[T], frozenset[Path]],
        incomplete: Callable[[T], bool],
        subscriptions: Sequence[Subscription] = EVERYTHING,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """Listen in the calling thread's network namespace.

        observe: looks; of which links there were changes alone, None when anything may have changed.
        files: what to look at once a second after such a look, as no event tells of it. incomplete: whether
        something could not be seen, and is to be tried again. changed: called from another thread when a look
        may show something else; several signs may be one call.
        """
        self._observe, self._unannounced, self._incomplete = observe, files, incomplete
        self._told = changed
        self._seen: T | None = None
        self._files: frozenset[Path] = frozenset()
        self._due = True
        self._changes = Changes(self._something_changed, subscriptions)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._changes.close()

    def look(self, *, anew: bool = False) -> T:
        """What there is now, the same object while there is no sign of a change; anew: look all the same.

        What could not be seen last time is tried again. Raises what `observe` and `files` raise.
        """
        if self._seen is not None and not self._due and not anew:
            return self._seen
        self._due = False  # before anything is looked at: what changes meanwhile is looked at next time
        before, self._seen = self._seen, None
        self._changes.look_at_files()
        dirty = self._changes.dirty()
        seen = self._observe(None if anew or before is None or dirty.everything else dirty.links)
        files = self._unannounced(seen)
        if files != self._files:
            self._changes.watch_files(files)
            self._files, self._due = files, True
        self._due |= self._incomplete(seen)
        self._seen = seen
        return seen

    @property
    def due(self) -> bool:
        """Whether the next look may show something else."""
        return self._due or self._seen is None

    def _something_changed(self) -> None:
        self._due = True
        self._told()
