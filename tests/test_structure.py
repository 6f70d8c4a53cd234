"""The house: imports go one way, a module holds one connected thing, and a Kubernetes kind has one model."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import grimp
import msgspec
import pytest

import k8s_rdma

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCES = Path(__file__).resolve().parent.parent / "src"
PRODUCT = SOURCES / "k8s_rdma"
PACKAGES = sorted(module.parent.name for module in SOURCES.glob("*/__init__.py"))


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph(*PACKAGES, cache_dir=None)


def test_no_module_is_in_a_circle_of_imports(graph: grimp.ImportGraph):
    """Imports for types alone count."""
    circles = []
    below: dict[str, set[str]] = {
        module: graph.find_modules_directly_imported_by(module) for module in graph.modules
    }
    while leaves := {module for module, imported in below.items() if not imported & below.keys()}:
        below = {module: imported for module, imported in below.items() if module not in leaves}
    circles = sorted(module for module in below if any(module in below[other] for other in below))
    assert not circles, "move what two of these need into a module below them, or pass it as a parameter"


KINDS = {
    "ObjectMeta": {
        *("annotations", "creationTimestamp", "deletionTimestamp", "generateName", "labels", "managedFields"),
        *("ownerReferences", "resourceVersion"),
    },
    "PodSpec": {
        *("affinity", "containers", "hostNetwork", "initContainers", "nodeName", "nodeSelector"),
        *("priorityClassName", "resourceClaims", "schedulerName", "schedulingGates", "schedulingGroup"),
        "topologySpreadConstraints",
    },
    "PodStatus": {"nominatedNodeName", "resourceClaimStatuses", "startTime"},
    "Container": {"restartPolicy", "volumeMounts"},
    "Node": {"taints", "unschedulable"},
    "Toleration": {"tolerationSeconds"},
    "ResourceClaim": {
        *("allocation", "consumedCapacity", "deviceClassName", "firstAvailable", "reservedFor", "shareID"),
    },
    "Lease": {"holderIdentity", "leaseDurationSeconds"},
}
"""Kinds of Kubernetes, with the fields by which a model of one is known."""

OF_SOMETHING_ELSE = {
    "config.pod_templates._Metadata": "checks manifests that no API server has checked; nothing reads it",
    "config.pod_templates._PodSpec": "checks manifests that no API server has checked; nothing reads it",
    "kube.api.PodView": "is the value that a Pod becomes, and is held for all pods of a cluster",
    "kube.list_watch._ListMeta": "is ListMeta, the metadata of a list",
    "planning.snapshot.NodeRecord": "is a node in the format of snapshots",
    "planning.snapshot.PodRecord": "is a pod in the format of snapshots",
    "extender.pod_store._PodRecord": "is the extender's facts about a pod, and no API server has it",
    "config.webhook.WebhookConfig": "is a configuration of ours",
    "wire.cluster_claims._ListedSpec": "is a ResourceSlice",
    "wire.stored_slice.Device": "is a ResourceSlice",
}
"""Structs that have such a field and model no kind in `KINDS`, with the reason."""


def derived(model: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    for child in model.__subclasses__():
        yield child
        yield from derived(child)


def declared(model: type[msgspec.Struct]) -> set[str]:
    """The keys that a struct adds to those of the structs that it is derived from."""
    keys = set(model.__struct_encode_fields__)
    for base in model.__bases__:
        keys -= set(getattr(base, "__struct_encode_fields__", ())) if base is not msgspec.Struct else set()
    return keys


@pytest.fixture(scope="module")
def structs() -> dict[str, type[msgspec.Struct]]:
    for module in pkgutil.walk_packages(k8s_rdma.__path__, "k8s_rdma."):
        if not module.name.endswith(("_pb2", "__main__")):
            importlib.import_module(module.name)
    found = (model for model in derived(msgspec.Struct) if model.__module__.startswith("k8s_rdma."))
    return {f"{model.__module__.removeprefix('k8s_rdma.')}.{model.__name__}": model for model in found}


def test_kubernetes_kind_is_modelled_once(structs: dict[str, type[msgspec.Struct]]):
    """A model may add fields to the one that it is derived from; no second one has them."""
    faults = []
    for kind, keys in KINDS.items():
        models: dict[str, list[str]] = defaultdict(list)
        for name, model in structs.items():
            if name not in OF_SOMETHING_ELSE:
                for key in keys & declared(model):
                    models[key].append(name)
        faults += [f"{kind}.{key}: {', '.join(names)}" for key, names in models.items() if len(names) > 1]
    assert not sorted(faults), (
        "read or derive the model in k8s_rdma.wire.objects; a struct of something else goes into "
        "OF_SOMETHING_ELSE, with the reason"
    )


def test_kind_of_kubernetes_is_modelled_among_the_kinds(structs: dict[str, type[msgspec.Struct]]):
    """Each of a kind's fields but for those that one reader alone adds to the kind's own model."""
    keys = set().union(*KINDS.values())
    misplaced = {
        name
        for name, model in structs.items()
        if declared(model) & keys and not name.startswith("wire.objects.") and name not in OF_SOMETHING_ELSE
        if not any(base.__module__.startswith("k8s_rdma.wire.objects.") for base in model.__mro__)
    }
    assert not misplaced, "move the model to k8s_rdma.wire.objects, or derive it from the one that is there"


def test_structs_of_something_else_exist_and_have_such_a_field(structs: dict[str, type[msgspec.Struct]]):
    keys = set().union(*KINDS.values())
    stale = {name for name in OF_SOMETHING_ELSE if name not in structs or not declared(structs[name]) & keys}
    assert not stale, "take these out of OF_SOMETHING_ELSE"


def test_no_part_is_set_in_another_one_three_objects_deep():
    deep = [
        f"{path.relative_to(SOURCES)}:{node.lineno}: {ast.unparse(target)}"
        for path in sorted(SOURCES.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Attribute) and attributes(target) > 2
    ]
    assert not deep, "give a part what it needs when it is made; what is made later is made of it"


def attributes(node: ast.expr) -> int:
    """How many attributes lead to a value: 3 of `self.leadership.pods.keys`."""
    return 1 + attributes(node.value) if isinstance(node, ast.Attribute) else 0


def test_class_names_are_unique_in_the_product():
    """A reader who searches for a class finds one. Classes that only their module uses begin with `_`."""
    homes = defaultdict(list)
    for path in sorted(PRODUCT.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(path.relative_to(PRODUCT).as_posix())
    repeated = {name: paths for name, paths in homes.items() if len(paths) > 1}
    assert not repeated, "name all but one of these classes by what tells it apart from the other"


FEWEST_LINES = 60
"""A smaller module may be held by the tests of those that use it."""

WITHOUT_TESTS_OF_ITS_NAME = {
    "k8s_rdma/core/devices/rdma_devices.py": "has types alone",
    "k8s_rdma/core/pf_selection.py": "has types alone",
    "k8s_rdma/doctor/cluster/crd.py": (
        "is a check whose table of cases, tests/doctor/cases/crd.py, says all that it finds"
    ),
    "k8s_rdma/doctor/node/iommu.py": (
        "is a check whose table of cases, tests/doctor/cases/iommu.py, says all that it finds"
    ),
    "k8s_rdma/doctor/node/lossless.py": (
        "is a check whose table of cases, tests/doctor/cases/lossless.py, says all that it finds"
    ),
    "k8s_rdma/doctor/node/modules.py": (
        "is a check whose table of cases, tests/doctor/cases/modules.py, says all that it finds"
    ),
    "k8s_rdma/kube/published_api.py": "has Protocols and the values of their calls alone",
    "k8s_rdma/wire/objects/meta.py": "has types alone",
    "k8s_rdma_demo/cluster/shapes.py": "has types alone",
    "k8s_rdma_demo/launch.py": (
        "puts a process into namespaces, of which tests/cli/test_demo.py runs the command"
    ),
    "k8s_rdma_demo/overbooking_monitor.py": "reads the nodes of the whole demo while it runs",
    "k8s_rdma_demo/scenes.py": (
        "acts in a run of the whole demo alone, whose every check tests/cli/test_demo.py demands"
    ),
    "k8s_rdma_demo/world.py": "starts the processes of the whole demo, which is run as a whole",
}
"""Modules of as many lines whose tests stand elsewhere, with the reason."""


def modules_without_tests() -> set[str]:
    """Return the modules without a `test_<module>.py`, or `test_<package>_<module>.py`, in any folder."""
    tests = {path.stem for path in Path(__file__).parent.rglob("test_*.py")}
    return {
        str(path.relative_to(SOURCES))
        for path in SOURCES.rglob("*.py")
        if not path.stem.startswith("__") and not path.stem.endswith("_pb2")
        if len(path.read_text().splitlines()) >= FEWEST_LINES
        if not {f"test_{path.stem.strip('_')}", f"test_{path.parent.name}_{path.stem}"} & tests
    }


def test_tests_of_a_module_have_its_name():
    missing = sorted(modules_without_tests() - WITHOUT_TESTS_OF_ITS_NAME.keys())
    assert not missing, (
        "move the tests of these into files of their names, for example tests/core/test_ledger.py"
    )


def test_modules_whose_tests_stand_elsewhere_exist_and_have_no_file():
    stale = WITHOUT_TESTS_OF_ITS_NAME.keys() - modules_without_tests()
    assert not stale, "take these out of WITHOUT_TESTS_OF_ITS_NAME"


LEAST_LINES = 40
"""A smaller part may stand beside another one: an error class or a helper is no second thing."""

MOST_OF_SEVERAL = 5

ONE_SUBJECT = {
    "k8s_rdma/kube/objects.py": "has the objects of Kubernetes in lightkube's form, one class a kind",
    "k8s_rdma_demo/cri.py": "has the messages of one API, and neither direction needs the other",
}
"""Modules whose parts do not name each other and still are one subject, with the reason."""


def parts(module: ast.Module) -> list[dict[str, int]]:
    """Return the connected parts of a module, the largest first: the definitions of each, with their lines.

    Two functions or classes are connected if one names the other. A constant connects all that it names, and
    those that name it: a table of functions, or the union of two classes. It also connects those that it
    decorates, for example the commands of one group. A constant that does neither has no connections, because
    two things may share a logger or a bound.
    """
    lines, names = {}, {}
    decorated: dict[str, set[str]] = defaultdict(set)
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names[node.name] = named(node)
            lines[node.name] = (node.end_lineno or node.lineno) - node.lineno + 1
            for name in set().union(*map(named, node.decorator_list)):
                decorated[name].add(node.name)
    for node in module.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for name in set().union(*map(named, targets)):
                connected = named(node.value) & lines.keys() | decorated[name]
                names |= {name: connected} if connected else {}
    found: list[set[str]] = []
    for name in names:
        connected = {name, *names[name]} & names.keys()
        touching = [part for part in found if part & connected]
        found = [part for part in found if not part & connected] + [connected.union(*touching)]
    with_lines = [{name: lines[name] for name in sorted(part & lines.keys())} for part in found]
    return sorted(with_lines, key=lambda part: -sum(part.values()))


def named(node: ast.AST) -> set[str]:
    """Return the names in a piece of code, and in annotations that are strings."""
    inside = list(ast.walk(node))
    texts = {each.value for each in inside if isinstance(each, ast.Constant) and isinstance(each.value, str)}
    return {each.id for each in inside if isinstance(each, ast.Name)} | set(filter(str.isidentifier, texts))


def things(source: str) -> list[str]:
    """Return the parts of a module that are large enough to be a thing, each by its largest definition."""
    large = [part for part in parts(ast.parse(source)) if sum(part.values()) >= LEAST_LINES]
    return [f"{max(part, key=lambda name: part[name])} ({sum(part.values())} lines)" for part in large]


def modules_of_several_things() -> dict[str, list[str]]:
    sources = {
        path: path.read_text() for path in sorted(SOURCES.rglob("*.py")) if not path.stem.endswith("_pb2")
    }
    found = {str(path.relative_to(SOURCES)): things(source) for path, source in sources.items()}
    return {path: held for path, held in found.items() if len(held) > 1}


def test_module_holds_one_connected_thing():
    several = [
        f"{path} holds {' and '.join(held)}, which do not name each other: give each a module of its own, or "
        "the module a reason in ONE_SUBJECT"
        for path, held in modules_of_several_things().items()
        if path not in ONE_SUBJECT
    ]
    assert not several, "\n".join(several)


def test_modules_of_one_subject_are_few_and_hold_several_parts():
    stale = ONE_SUBJECT.keys() - modules_of_several_things().keys()
    assert not stale, "take these out of ONE_SUBJECT: they hold one connected thing, or do not exist"
    assert len(ONE_SUBJECT) <= MOST_OF_SEVERAL, "split one of these before another one is added"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def first(): second()\ndef second(): ...", [["first", "second"]]),
        ("def first(): ...\ndef second(): ...", [["first"], ["second"]]),
        ("LOG = 1\ndef first(): LOG\ndef second(): LOG", [["first"], ["second"]]),
        ("def first(): ...\ndef second(): ...\nTABLE = {1: first, 2: second}", [["first", "second"]]),
        ("class First: ...\ndef second(): TABLE\nTABLE = [First]", [["First", "second"]]),
        ("class First: ...\ndef second(value: 'First'): ...", [["First", "second"]]),
        (
            "APP = App()\n@APP.command\ndef first(): ...\n@APP.command\ndef second(): ...",
            [["first", "second"]],
        ),
        ("@app.command\ndef first(): ...\n@app.command\ndef second(): ...", [["first"], ["second"]]),
        ("class A: ...\nclass B: ...\nclass C(A, B): ...\nclass D: ...", [["A", "B", "C"], ["D"]]),
    ],
    ids=[
        "named",
        "apart",
        "shared-logger",
        "table",
        "through-a-table",
        "annotation",
        "group",
        "imported-group",
        "joined-later",
    ],
)
def test_parts_are_connected_by_names(source: str, expected: list[list[str]]):
    assert [list(part) for part in parts(ast.parse(source))] == expected


def late_constants(source: str) -> list[str]:
    """Return the constants below a module's first definition that need no definition of that module.

    A constant needs the definitions that it names: a table of functions, or a decoder of a struct. It also
    needs those of other constants that it names.
    """
    defined: set[str] = set()
    late = []
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            defined.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and defined:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = {name for target in targets for name in named(target)}
            if named(node) & defined:
                defined |= names
            else:
                late += sorted(names)
    return late


def test_constants_stand_above_the_first_definition():
    late = [
        f"{path.relative_to(SOURCES)}: move {', '.join(names)} above the module's first function or class"
        for path in sorted(SOURCES.rglob("*.py"))
        if not path.stem.endswith("_pb2")
        if (names := late_constants(path.read_text()))
    ]
    assert not late, "\n".join(late)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("A = 1\ndef first(): ...", []),
        ("def first(): ...\nA: int = 1\nB, C = 2, 3", ["A", "B", "C"]),
        ("def first(): ...\nTABLE = {1: first}", []),
        ("class First: ...\nTABLE: dict[str, 'First'] = {}", []),
        ("class First: ...\nTABLE = [First]\nLAST = TABLE[-1]\nA = 1", ["A"]),
        ("def first(): ...\nfirst.tries = 1", []),
    ],
    ids=["above", "below", "table", "annotation", "through-a-table", "attribute"],
)
def test_constant_is_late_below_definitions_that_it_does_not_need(source: str, expected: list[str]):
    assert late_constants(source) == expected
