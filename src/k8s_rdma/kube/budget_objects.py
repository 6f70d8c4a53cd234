"""`policy/v1` PodDisruptionBudget, as far as it is read."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec
from lightkube.core.resource import ApiInfo, NamespacedResourceG, ResourceDef

from k8s_rdma.kube.api import BudgetView
from k8s_rdma.kube.objects import Metadata

if TYPE_CHECKING:
    from collections.abc import Mapping


class _Expression(msgspec.Struct, frozen=True):
    key: str
    operator: str
    values: list[str] | None = None


class Selector(msgspec.Struct, frozen=True):
    """`metav1.LabelSelector`."""

    matchLabels: dict[str, str] | None = None  # noqa: N815  the API's name
    matchExpressions: list[_Expression] | None = None  # noqa: N815  the API's name


class _Spec(msgspec.Struct, frozen=True):
    selector: Selector | None = None


class _Something(msgspec.Struct, frozen=True):
    pass


class _Status(msgspec.Struct, frozen=True):
    disruptionsAllowed: int = 0  # noqa: N815  the API's name
    disruptedPods: dict[str, str | _Something | None] | None = None  # noqa: N815  the API's name


class BudgetObject(msgspec.Struct, NamespacedResourceG):
    """A PodDisruptionBudget."""

    _api_info = ApiInfo(
        resource=ResourceDef("policy", "v1", "PodDisruptionBudget"),
        plural="poddisruptionbudgets",
        verbs=["list", "watch", "global_list", "global_watch"],
    )
    metadata: Metadata
    apiVersion: str | None = None  # noqa: N815  the API's name
    kind: str | None = None
    spec: _Spec = _Spec()
    status: _Status = _Status()

    def view(self) -> BudgetView:
        """The same as a value."""
        return BudgetView(
            namespace=self.metadata.namespace or "",
            name=self.metadata.name,
            selector=partial(_selects, self.spec.selector or Selector()),
            allowed=self.status.disruptionsAllowed,
            disrupted=frozenset(self.status.disruptedPods or ()),
        )


def _selects(selector: Selector, labels: Mapping[str, str]) -> bool:
    wanted, expressions = selector.matchLabels or {}, selector.matchExpressions or []
    if not wanted and not expressions:
        return False
    return wanted.items() <= labels.items() and all(_meets(labels, each) for each in expressions)


def _meets(labels: Mapping[str, str], expression: _Expression) -> bool:
    """An unknown operator selects nothing."""
    value, values = labels.get(expression.key), expression.values or ()
    match expression.operator:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    return False
