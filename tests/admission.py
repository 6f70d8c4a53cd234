"""ValidatingAdmissionPolicies without an API server: CEL's own library, and Kubernetes' additions to it.

Source: k8s.io/apiserver, `pkg/admission/plugin/policy/validating`, `pkg/cel/library` (`regex.go`,
`quantity.go`, `lists.go`). tests/cluster has the real API server give the same answers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from cel_expr_python import cel
from cel_expr_python.ext import ext_optional, ext_strings

from k8s_rdma.wire.pod_spec import quantity

if TYPE_CHECKING:
    from collections.abc import Mapping

    Json = dict[str, Any]

POLICIES = Path(__file__).parents[1] / "deploy" / "policies"
_TEXT, _ANY, _INTEGERS = cel.Type.STRING, cel.Type.DYN, cel.Type.List(cel.Type.INT)

ASKING_FOR_NOTHING = (None, "", " \n", "[]", " [\t]\n")
"""Values of the annotation; None if it is absent."""

WITHOUT_TEMPLATE: tuple[Json, ...] = ({"kind": "ReplicationController", "spec": {}}, {"kind": "PodTemplate"})
"""Objects that pods could be made from, if they had one."""


def made_from(template: Json) -> tuple[Json, ...]:
    """Return objects that make pods of a template: one for each place where it may stand."""
    return (
        {"kind": "Deployment", "spec": {"template": template}},
        {"kind": "CronJob", "spec": {"jobTemplate": {"spec": {"template": template}}}},
        {"kind": "PodTemplate", "template": template},
    )


@dataclass(frozen=True)
class Policy:
    """A policy; each expression compiled."""

    conditions: tuple[cel.Expression, ...]
    variables: tuple[tuple[str, cel.Expression], ...]
    validations: tuple[tuple[cel.Expression, cel.Expression], ...]

    def refusals(self, new: Json, **more: Any) -> list[str]:
        """Return the validations' messages against an object that is created, or changed (`oldObject`).

        more: `request`, `params`, `oldObject` as expressions see them.
        """
        given = {"object": new, "oldObject": None, "request": {}, "params": None, **more}
        if not all(_value(condition, given, {}) for condition in self.conditions):
            return []
        variables: Json = {}
        for name, expression in self.variables:
            found = expression.eval(data={**given, "variables": variables})
            if found.type() != cel.Type.ERROR:  # else its use fails, as in the API server
                variables[name] = found.plain_value()
        return [
            _value(message, given, variables)
            for expression, message in self.validations
            if not _value(expression, given, variables)
        ]


@cache
def policy(name: str, replaced: tuple[tuple[str, str], ...] = ()) -> Policy:
    """The policy of a file of deploy/policies; replaced: variables with another expression."""
    return read_policy(document(name), dict(replaced))


def document(name: str) -> Json:
    """The policy as it is written."""
    return next(each for each in documents(name) if each["kind"] == "ValidatingAdmissionPolicy")


def documents(name: str) -> list[Json]:
    """All that is in the file."""
    return list(yaml.safe_load_all((POLICIES / f"{name}.yaml").read_text()))


def read_policy(found: Json, replaced: Mapping[str, str] | None = None) -> Policy:
    """Compile a policy."""
    spec, replaced = found["spec"], replaced or {}
    return Policy(
        conditions=tuple(_compiled(each["expression"]) for each in spec.get("matchConditions", ())),
        variables=tuple(
            (each["name"], _compiled(replaced.get(each["name"], each["expression"])))
            for each in spec.get("variables", ())
        ),
        validations=tuple(
            (_compiled(each["expression"]), _compiled(_message(each))) for each in spec["validations"]
        ),
    )


def evaluated(spec: Json, new: Json) -> Json:
    """Return a specification's variables for an object that is created; empty if it does not match."""
    given = {"object": new, "oldObject": None, "request": {}, "params": None}
    if not all(_value(_compiled(each["expression"]), given, {}) for each in spec.get("matchConditions", ())):
        return {}
    variables: Json = {}
    for each in spec["variables"]:
        variables[each["name"]] = _value(_compiled(each["expression"]), given, variables)
    return variables


def _message(validation: Json) -> str:
    return (
        validation["messageExpression"] if "messageExpression" in validation else repr(validation["message"])
    )


def _value(expression: cel.Expression, given: Json, variables: Json) -> Any:
    found = expression.eval(data={**given, "variables": variables})
    assert found.type() != cel.Type.ERROR, found.value()
    return found.plain_value()


def _find(text: str, pattern: str) -> str:
    found = re.search(pattern, text, re.ASCII)
    return found.group() if found else ""


def _find_all(text: str, pattern: str) -> list[str]:
    return [found.group() for found in re.finditer(pattern, text, re.ASCII)]


def _is_quantity(text: str) -> bool:
    try:
        quantity(text)
    except ValueError:
        return False
    return True


def _is_integer(text: str) -> bool:
    amount = quantity(text)
    return amount.denominator == 1 and -(2**63) <= amount < 2**63


def _as_integer(text: str) -> int:
    if not _is_integer(text):
        msg = f"{text} is no integer"
        raise ValueError(msg)
    return int(quantity(text))


def _function(
    name: str,
    returned: cel.Type,
    implementation: Any,
    parameters: tuple[cel.Type, ...] = (_TEXT, _TEXT),
    *,
    is_member: bool = True,
) -> cel.FunctionDecl:
    overload = cel.Overload(
        f"string_{name}",
        return_type=returned,
        parameters=list(parameters),
        is_member=is_member,
        impl=implementation,
    )
    return cel.FunctionDecl(name, [overload])


_ENVIRONMENT = cel.NewEnv(
    variables={
        **dict.fromkeys(("object", "oldObject", "request", "params"), _ANY),
        "variables": cel.Type.Map(_TEXT, _ANY),
    },
    extensions=[ext_strings.ExtStrings(), ext_optional.ExtOptional()],
    functions=[
        _function("find", _TEXT, _find),
        _function("findAll", cel.Type.List(_TEXT), _find_all),
        _function("isQuantity", cel.Type.BOOL, _is_quantity, (_TEXT,), is_member=False),
        _function("quantity", _TEXT, str, (_TEXT,), is_member=False),  # a quantity is its text here
        _function("isInteger", cel.Type.BOOL, _is_integer, (_TEXT,)),
        _function("asInteger", cel.Type.INT, _as_integer, (_TEXT,)),
        _function("isSorted", cel.Type.BOOL, lambda found: list(found) == sorted(found), (_INTEGERS,)),
    ],
)
_compiled = cache(_ENVIRONMENT.compile)
