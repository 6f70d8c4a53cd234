"""All checks, and how a collector runs those for which it has facts.

A module in `doctor/node` or `doctor/cluster` is found by being there. A check runs because a collector has a
method, decorated with `collected`, that returns the class of facts that the check asks for.
"""

from __future__ import annotations

import os
from functools import cache, cached_property
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, TypeVar, get_args, get_type_hints

from k8s_rdma.doctor import cluster, node
from k8s_rdma.doctor.finding import Finding, not_looked_at
from k8s_rdma.doctor.subject import Subject
from k8s_rdma.errors import K8sRdmaError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T_co = TypeVar("T_co", covariant=True)

_OTHER_FORM = (AttributeError, LookupError, TypeError, ValueError, ArithmeticError)


class collected(cached_property[T_co]):  # noqa: N801 - a decorator, as its base is
    """A property of a collector: facts that checks ask for, collected at most once.

    Its annotation names the class of the facts, `-> CniFacts`; `-> CrdFacts | None` if checks of these facts
    do not concern all nodes or clusters.
    """

    @property
    def facts(self) -> type:
        """The class of the facts."""
        returned = get_type_hints(self.func)["return"]
        found: type = next(kind for kind in get_args(returned) or (returned,) if kind is not type(None))
        return found


@cache
def subjects() -> tuple[Subject, ...]:
    """Return the subjects of all modules of checks, which are loaded by that."""
    modules = (
        import_module(f"{package.__name__}.{module.name}")
        for package in (node, cluster)
        for module in iter_modules(package.__path__)
    )
    constants = (value for module in modules for value in vars(module).values())
    return tuple(dict.fromkeys(value for value in constants if isinstance(value, Subject)))


def subjects_of(collector: type) -> Iterator[tuple[str, Subject]]:
    """Yield the subjects that a collector has facts for, each with its property, in the order of those."""
    for name, value in vars(collector).items():
        if isinstance(value, collected):
            for subject in subjects():
                if subject.facts is value.facts:
                    yield name, subject


def run_checks(collector: object) -> Iterator[Finding]:
    """Yield the findings of all checks, subject by subject; a part that cannot be read is a finding, too."""
    for name, subject in subjects_of(type(collector)):
        yield from run_check(subject.name, lambda: _findings(collector, name, subject))  # noqa: B023 - called at once


def _findings(collector: object, name: str, subject: Subject) -> Iterator[Finding]:
    facts = getattr(collector, name)
    if facts is not None:
        yield from subject.findings(facts)


def run_check(subject: str, check: Callable[[], Iterator[Finding]]) -> tuple[Finding, ...]:
    """Return a subject's findings; if it cannot be examined, a finding with the reason.

    The documents of others may not have the form of their kind. For example, a pod may lack a specification.
    """
    try:
        return tuple(check())
    except _OTHER_FORM as error:
        why = f"a document of another form than is documented: {type(error).__name__}: {error}"
        return (not_looked_at(subject, why, denied=False),)
    except (OSError, K8sRdmaError, RecursionError) as error:  # of others' documents as well
        denied = any(isinstance(cause, PermissionError) for cause in (error, error.__cause__))
        why = str(error)
        if isinstance(error, OSError) and error.filename:
            why = f"{os.fsdecode(error.filename)}: {error.strerror}"
        return (not_looked_at(subject, why, denied=denied),)
