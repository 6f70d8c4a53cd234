"""An API of the cluster whose failed calls are counted."""

from __future__ import annotations

from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast

from k8s_rdma.kube.errors import API_ERRORS, ApiRefusedError, ApiUnreachableError

if TYPE_CHECKING:
    import collections
    from collections.abc import AsyncIterator, Awaitable, Iterator

T = TypeVar("T")


def counted(api: T, failures: collections.Counter[tuple[str, ...]]) -> T:
    """Wrap an API to count its failed calls in `failures`, by the call's name and the kind of failure.

    Kinds: `refused`, `unreachable` and `uncertain`, as `kube.errors` has them.
    """
    return cast("T", _Counted(api, failures))


class _Counted:
    def __init__(self, api: object, failures: collections.Counter[tuple[str, ...]]) -> None:
        self._api = api
        self._failures = failures

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._api, name)
        if not callable(attribute):
            return attribute

        def call(*args: Any, **kwargs: Any) -> Any:
            result = attribute(*args, **kwargs)
            return self._events(name, result) if hasattr(result, "__aiter__") else self._answer(name, result)

        return call

    async def _answer(self, name: str, call: Awaitable[T]) -> T:
        with self._counting(name):
            return await call

    async def _events(self, name: str, stream: Any) -> AsyncIterator[Any]:
        with self._counting(name):
            async with aclosing(stream) as events:
                async for event in events:
                    yield event

    @contextmanager
    def _counting(self, name: str) -> Iterator[None]:
        try:
            yield
        except API_ERRORS as error:
            self._failures[name, _kind(error)] += 1
            raise


def _kind(error: Exception) -> str:
    if isinstance(error, ApiRefusedError):
        return "refused"
    return "unreachable" if isinstance(error, ApiUnreachableError) else "uncertain"
