"""Options that several commands have, as one parameter: defined once, and passed as one value.

A bundle is a function whose parameters are options. The command gets its value. A parameter may be a bundle,
too; options of one name are one option.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class Bundle:
    """Marks a parameter: `Annotated[Value, Bundle(build)]`. build: makes the value of its options."""

    build: Callable[..., Any]


def with_bundles(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return the command with the options of its bundles as parameters, which typer reads."""
    signature = inspect.signature(command, eval_str=True)
    options = {option.name: option for option in _options(signature)}

    @wraps(command)
    def run(**values: Any) -> Any:
        return command(**_arguments(signature, values))

    parameters = sorted(options.values(), key=lambda option: option.kind)
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {option.name: option.annotation for option in parameters}
    return run


def _options(signature: inspect.Signature) -> Iterator[inspect.Parameter]:
    for parameter in signature.parameters.values():
        bundle = _bundle(parameter)
        if bundle is None:
            yield parameter
        else:
            inner = inspect.signature(bundle.build, eval_str=True)
            yield from (option.replace(kind=inspect.Parameter.KEYWORD_ONLY) for option in _options(inner))


def _arguments(signature: inspect.Signature, values: dict[str, Any]) -> dict[str, Any]:
    found = {}
    for name, parameter in signature.parameters.items():
        bundle = _bundle(parameter)
        if bundle is None:
            found[name] = values[name]
        else:
            inner = inspect.signature(bundle.build, eval_str=True)
            found[name] = bundle.build(**_arguments(inner, values))
    return found


def _bundle(parameter: inspect.Parameter) -> Bundle | None:
    if get_origin(parameter.annotation) is not Annotated:
        return None
    return next((mark for mark in get_args(parameter.annotation)[1:] if isinstance(mark, Bundle)), None)
