"""Counts what fails of the calls of an API, whichever they are."""

from __future__ import annotations

from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast

from k8s_rdma.kube.api import API_ERRORS, ApiRefusedError, ApiUnreachableError

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import AsyncIterator, Awaitable, Iterator

T = TypeVar("T")


def counted(api: T, failures: Counter[tuple[str, ...]]) -> T:
    """The same API; `failures` gets those of its calls, by the call's name and the kind of failure.

    Kinds: `refused`, `unreachable` and `uncertain`, as the errors of `kube.api`.
    """
    return cast("T", _Counted(api, failures))


class _Counted:
    def __init__(self, api: object, failures: Counter[tuple[str, ...]]) -> None:
        self._api = api
        self._failures = failures

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._api, name)
        if not callable(attribute):
            return attribute

        def call(*args: Any, **kwargs: Any) -> Any:
            made = attribute(*args, **kwargs)
            return self._events(name, made) if hasattr(made, "__aiter__") else self._answer(name, made)

        return call

    async def _answer(self, name: str, made: Awaitable[T]) -> T:
        with self._counting(name):
            return await made

    async def _events(self, name: str, made: Any) -> AsyncIterator[Any]:
        with self._counting(name):
            async with aclosing(made) as events:
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
