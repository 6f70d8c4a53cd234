"""Rules of the repository itself: pins, documents, names, and content that no file may have."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from syntax import syntax_tree

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
RUNTIME, DEV = ROOT / "requirements/runtime.txt", ROOT / "requirements/dev.txt"
SITE, IMAGE, RELEASE, PROGRAM, HELM, COMPILER, COVERAGE = (
    ROOT / f"requirements/{name}.txt"
    for name in ("docs", "image", "release", "program", "helm", "compiler", "coverage")
)
OURS = (
    "src",
    "tests",
    "bench",
    "lab",
    "cni",
    "scripts",
    "docs",
    "docs_site",
    "examples",
    "deploy",
    "requirements",
    ".ci",
    ".github",
)
NOT_OURS = {".git", "latest.json"}
"""A worktree's link, and the raw timings of benchmarks, which git ignores."""

TEXT = sorted(
    path
    for path in (
        *(path for path in ROOT.iterdir() if path.is_file()),
        *(path for folder in OURS for path in (ROOT / folder).rglob("*")),
    )
    if path.is_file()
    and "__pycache__" not in path.parts
    and path.suffix != ".so"
    and path.name not in NOT_OURS
)
DOCUMENTS = [path for path in TEXT if path.suffix == ".md" and path.name != "template.md"]
"""A template's links hold where the document is written."""

MODULES = sorted((ROOT / "src").rglob("*.py"))
NAMED_PACKAGES = (
    *("core", "wire", "kube", "config", "linux"),
    *("agent", "extender", "server", "http_server", "deviceplugin"),
    *("doctor", "verify", "cli", "init", "install", "planning", "web", "webhook"),
    *("../k8s_rdma_demo", "../k8s_rdma_simulation"),
    *("errors.py", "process.py", "state_reader.py"),
)
"""Packages and modules whose names are all nouns and verbs of the field; no entry is ever removed."""
NO_NAME = re.compile(
    "told|tells|said|says|asked|asks|asking|seen|sees|given|gives|wanted|wants|held|gone|looks|looking|around|made"
    "|makes|known|knows|kept|keeps|left|lost|taken|takes|got|has|had|was|were|been|done|words|things|mind"
    "|each|ones?|others?|some|both|more|most|rest|few|many|where|who|whom|whose|which|what|else|here|there|then"
    "|once|before|by|of|at|with|without|from|into|to"
)
"""Participles, pronouns and prepositions: alone they do not name a value."""
NO_BEGINNING = re.compile(
    r"(what|which|how|why|where|when|who|whoever|whose|whom|whether|of|by|for|as|like|in|on|at|to|from|with"
    r"|without|within|until|beside|between|under|among|and|or|if|so|such|the same|these|those|this|that|its?"
    r"|they|them|their|both|all of|none|nothing|nobody)\b",
    re.IGNORECASE,
)
"""A docstring begins with a verb or the thing's noun, and is a sentence without its class's name."""
NO_WORD = re.compile(
    r"\b(?:told|nobody|who(?:so)?ever|looked[\s#]+after|for[\s#]+want[\s#]+of|gone[\s#]+round|comes?[\s#]+home"
    r"|as[\s#]+ever|whose[\s#]+turn|of[\s#]+(?:which|whom))\b",
    re.IGNORECASE,
)
"""Words that readers stumble over; the documentation of Kubernetes has plainer ones."""
PLAIN = MODULES
"""Modules in plain words; no entry is ever removed."""
OUR_PACKAGES = {"k8s_rdma", "k8s_rdma_demo", "k8s_rdma_simulation"}


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def pins(lock: Path) -> dict[str, str]:
    """Return name to version of every requirement; fail if one is not pinned by version and hash."""
    logical_lines = lock.read_text().replace("\\\n", " ").splitlines()
    found = {}
    for line in logical_lines:
        if line.strip() and not line.startswith("#"):
            match = re.fullmatch(r"([a-z0-9-]+)==(\S+)((?: +--hash=sha256:[0-9a-f]{64})+) *", line)
            assert match, f"{relative(lock)}: not a pin with hashes: {line}"
            found[match[1]] = match[2]
    return found


def declared() -> dict[str, list[Requirement]]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras, groups = project["project"]["optional-dependencies"], project["dependency-groups"]
    wanted = {"runtime": project["project"]["dependencies"], **extras, **groups}
    return {kind: [Requirement(text) for text in texts] for kind, texts in wanted.items()}


@pytest.mark.parametrize(
    "lock", [RUNTIME, DEV, SITE, IMAGE, RELEASE, PROGRAM, HELM, COMPILER, COVERAGE], ids=relative
)
def test_lock_names_no_place_to_fetch_from(lock):
    assert "://" not in lock.read_text()


def test_lock_of_development_holds_the_pins_of_the_program_and_its_installer():
    assert pins(RUNTIME).items() <= pins(PROGRAM).items() <= pins(DEV).items()


@pytest.mark.parametrize("lock", [SITE, RELEASE, COVERAGE], ids=relative)
def test_lock_can_be_installed_beside_that_of_development(lock):
    installed = pins(SITE) | pins(DEV)
    assert not {name for name, version in pins(lock).items() if installed.get(name, version) != version}


def test_programs_of_image_release_and_machines_without_libc_are_of_one_compiler():
    assert pins(IMAGE)["ziglang"] == pins(RELEASE)["ziglang"] == pins(COMPILER)["ziglang"]


@pytest.mark.parametrize(
    ("kind", "lock"),
    [
        *(("runtime", RUNTIME), ("program", PROGRAM), ("plots", DEV), ("dev", DEV), ("docs", SITE)),
        *(("image", IMAGE), ("release", RELEASE), ("helm", HELM), ("compiler", COMPILER)),
        ("coverage", COVERAGE),
    ],
)
def test_lock_satisfies_declared_dependencies(kind, lock):
    locked = pins(lock)
    for requirement in declared()[kind]:
        version = locked.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement.name} is not locked: make lock"
        assert requirement.specifier.contains(version), f"{requirement} is locked as {version}: make lock"


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", "Makefile", "docs/tutorial.md", "docs/machines.md"]
)
def test_page_names_the_versions_of_python_that_the_project_declares(page):
    first, *_, last = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text())
    assert f"Python {first} to {last}" in (ROOT / page).read_text().replace("\n# ", " ")


def test_dependencies_declare_every_package_that_is_imported():
    kinds = declared()
    names = {canonicalize_name(requirement.name) for requirement in kinds["runtime"] + kinds["plots"]}
    brought_by = packages_distributions()
    undeclared = [
        module
        for module in third_party_imports()
        if not names & {canonicalize_name(distribution) for distribution in brought_by.get(module, ())}
    ]
    assert not undeclared


def third_party_imports() -> set[str]:
    """Top-level modules that the program imports and that neither Python nor we bring."""
    nodes = [node for path in MODULES for node in ast.walk(syntax_tree(path))]
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
    return {name.partition(".")[0] for name in names} - sys.stdlib_module_names - OUR_PACKAGES


def test_dependencies_each_have_their_reason_written_down():
    reasons = (ROOT / "docs/adr/0002-dependencies.md").read_text()
    names = {requirement.name for requirements in declared().values() for requirement in requirements}
    assert not [name for name in sorted(names) if f"`{name}`" not in reasons]


FORBIDDEN = {
    "work left for later": r"\b(TO[D]O|FIX[M]E|X[X]X|HA[C]K)\b",
    "a path of someone's machine": r"(?<![\w.])/(wor[k]|roo[t]|hom[e]/(?!kubernetes/bin)\w+|User[s]/\w+)/",
    "a package registry": r"\b(pyp[i]|python[h]osted|test\.pyp[i]|deb\.debia[n]|security\.debia[n])\.org\b",
    "an issue or ticket by number": r"(?i)\b(issue|ticket|pull request|PR)s? #?\d+\b|\bGH-\d+\b",
    "a secret": r"BEGIN [A-Z ]*PRIVATE KE[Y]|\bAKI[A][0-9A-Z]{16}\b|\bgh[po]_[0-9A-Za-z]{30}",
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_files_do_not_contain(what):
    pattern = re.compile(FORBIDDEN[what])
    found = []
    for path in TEXT:
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            if pattern.search(line):
                found.append(f"{relative(path)}:{number}: {line.strip()[:100]}")
    assert not found


def test_files_end_with_one_newline_and_have_no_trailing_blanks():
    found = [
        relative(path)
        for path in TEXT
        if path.suffix in {".py", ".md", ".yaml", ".toml", ".c", ".h", ".sh"}
        and (text := path.read_text())
        and (not text.endswith("\n") or text.endswith("\n\n") or re.search(r"[ \t]+$", text, re.MULTILINE))
    ]
    assert not found


def test_modules_stay_within_six_hundred_and_fifty_lines():
    assert not [
        f"{relative(path)}: {lines}"
        for path in MODULES
        if (lines := len(path.read_text().splitlines())) > 650  # the house's limit
    ]


def test_modules_are_named_after_their_content():
    says_nothing = {"utils", "util", "helpers", "helper", "common", "manager", "base", "misc"}
    assert not [relative(path) for path in MODULES if path.stem in says_nothing]


@pytest.mark.parametrize("package", NAMED_PACKAGES)
def test_names_are_more_than_a_participle_a_pronoun_or_a_preposition(package):
    place = (ROOT / "src/k8s_rdma" / package).resolve()
    modules = [
        path for path in (place, *place.rglob("*.py")) if path.suffix == ".py" and "pb" not in path.parts
    ]
    assert modules
    assert not [
        f"{relative(path)}:{line}: {name}"
        for path in modules
        for name, line in bound_names(syntax_tree(path))
        if NO_NAME.fullmatch(name.strip("_"))
    ]


def test_names_are_checked_in_every_package():
    checked = {(ROOT / "src/k8s_rdma" / package).resolve() for package in NAMED_PACKAGES}
    assert not [
        relative(path)
        for path in MODULES
        if not path.stem.startswith("__") and not checked & {path, *path.parents}
    ]


def test_docstrings_begin_with_a_verb_or_a_noun():
    assert not [
        f"{relative(path)}:{line}: {text.splitlines()[0]}"
        for path in PLAIN
        for text, line in docstrings(syntax_tree(path))
        if NO_BEGINNING.match(text)
    ]


def test_modules_are_written_in_plain_words():
    assert not [
        f"{relative(path)}:{text.count(chr(10), 0, match.start()) + 1}: {match[0]}"
        for path in PLAIN
        for text in [path.read_text()]
        for match in NO_WORD.finditer(text)
    ]


def docstrings(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Texts that stand as statements: of modules, classes and functions, and below variables."""
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield text.strip(), node.lineno


def bound_names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Functions, classes, parameters, variables and attributes, without the fields that a format names."""
    fields = {
        id(statement.target)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and any("Struct" in ast.unparse(base) for base in node.bases)
        for statement in node.body
        if isinstance(statement, ast.AnnAssign)
    }
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name, node.lineno
            case ast.arg():
                yield node.arg, node.lineno
            case ast.Name(ctx=ast.Store()) if id(node) not in fields:
                yield node.id, node.lineno
            case ast.Attribute(ctx=ast.Store()):
                yield node.attr, node.lineno
            case (
                ast.ExceptHandler(name=str(name))
                | ast.MatchAs(name=str(name))
                | ast.MatchStar(name=str(name))
            ):
                yield name, node.lineno


@pytest.mark.parametrize("document", DOCUMENTS, ids=relative)
def test_document_links_to_files_that_exist(document):
    text = re.sub(r"```.*?```", "", document.read_text(), flags=re.DOTALL)
    targets = re.findall(r"\]\((?!\w+:)([^)#\s]+)", text)
    assert not [target for target in targets if not (document.parent / target).exists()]


def test_documents_are_all_linked_from_the_index():
    index = ROOT / "docs/index.md"
    linked = {
        (index.parent / target).resolve() for target in re.findall(r"\]\(([^)#\s]+)", index.read_text())
    }
    assert not [relative(path) for path in (ROOT / "docs").glob("*.md") if path not in linked | {index}]


def test_documents_name_make_targets_that_exist():
    targets = set(re.findall(r"^([a-z][a-z0-9-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        (relative(document), target)
        for document in DOCUMENTS
        for target in re.findall(r"(?:^|`)make ([a-z][a-z0-9-]*)", document.read_text(), re.MULTILINE)
    }
    assert not [(document, target) for document, target in sorted(named) if target not in targets]
