"""The functions that a change of sources affects, as far as the sources say so.

A function is affected if its own text changed, or if it names a constant that changed, or one that is made
from such a constant at import. For example, a row of `DRIVERS` affects the functions that name this table.
A new name has no effect, because functions that use it have changed, too. Other changes at a module's
top level, such as a base of a class, affect the whole module: instances reach code that does not name
their class.

Two kinds of changes affect less. A comment has no effect, and neither has a docstring, except those that
commands show as help, and those of the models of files and messages, which schemas show. A row of a table
affects those who name it: a table is a dictionary with a text for each key, and a dataclass of keywords, in
which a new field with a default is a row.
"""

from __future__ import annotations

import ast
import builtins
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

Name = tuple[str, str]
"""A module, and a name in it; a method's has its class before it: `Ledger.add`."""

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
PLAIN_DECORATORS = frozenset(
    {"asynccontextmanager", "cache", "contextmanager", "dataclass", "lru_cache", "total_ordering", "unique"}
)
"""Decorators that do not enter the function into a table, as those of commands do."""


SHOWN_DOCSTRINGS = re.compile(r"__doc__|\bStruct\b|\btyper\b|\.commands\.", re.MULTILINE)
"""In a module's text or name: its docstrings are shown as help or in a schema."""

LEAST_LETTERS = 4
"""Shorter words in a row are ignored."""


@dataclass(frozen=True, slots=True)
class ChangedRows:
    """The rows of a table that changed, are new, or are gone.

    words: their keys, and the texts in them. others: the keys of the table's other rows.
    """

    module: str
    words: frozenset[str]
    others: frozenset[str]


@dataclass(frozen=True, slots=True)
class Change:
    """Affected functions, affected constants, modules that are affected as a whole, and changed rows.

    touched: the changed modules in which anything but rows, comments and docstrings changed.
    """

    functions: frozenset[Name] = frozenset()
    constants: frozenset[Name] = frozenset()
    modules: frozenset[str] = frozenset()
    rows: frozenset[ChangedRows] = frozenset()
    touched: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Table:
    """A constant or a class as rows, and the rest of it. texts: the texts in each row."""

    rows: dict[str, str]
    texts: dict[str, frozenset[str]]
    rest: str


@dataclass(slots=True)
class Definitions:
    """A module's functions, classes and constants as text of their syntax trees, by name.

    imports: the module and the name that a name comes from. unnamed: statements that bind no name, such as
    calls. entered: functions and classes whose decorator may enter them into a table. reads: the names that a
    function, a class or a constant reads. tables: constants and classes that consist of rows.
    """

    functions: dict[str, str] = field(default_factory=dict)
    classes: dict[str, str] = field(default_factory=dict)
    constants: dict[str, str] = field(default_factory=dict)
    imports: dict[str, Name] = field(default_factory=dict)
    unnamed: set[str] = field(default_factory=set)
    entered: set[str] = field(default_factory=set)
    reads: dict[str, set[str]] = field(default_factory=dict)
    tables: dict[str, Table] = field(default_factory=dict)

    @property
    def names(self) -> set[str]:
        """All names at the top level."""
        return {*self.functions, *self.classes, *self.constants, *self.imports}


def definitions(source: str, module: str = "") -> Definitions:
    """Return the definitions of a module's source."""
    found, tree = Definitions(), ast.parse(source)
    if not (SHOWN_DOCSTRINGS.search(source) or SHOWN_DOCSTRINGS.search(module)):
        _remove_docstrings(tree)
    for statement in tree.body:
        _add(found, statement)
    return found


def _remove_docstrings(tree: ast.Module) -> None:
    """Remove texts that are statements from functions and classes, but for those that a table may get."""
    for node in ast.walk(tree):
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)) and not _may_enter(node.decorator_list):
            node.body = [each for each in node.body if not _is_text(each)]


def _is_text(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _add(found: Definitions, statement: ast.stmt) -> None:
    if isinstance(statement, (*FUNCTIONS, ast.ClassDef)) and _may_enter(statement.decorator_list):
        found.entered.add(statement.name)
    if isinstance(statement, FUNCTIONS):
        _put(found, found.functions, statement.name, statement)
    elif isinstance(statement, ast.ClassDef):
        _add_class(found, statement)
    elif isinstance(statement, ast.Import | ast.ImportFrom):
        module = statement.module or "" if isinstance(statement, ast.ImportFrom) else ""
        for alias in statement.names:
            found.imports[alias.asname or alias.name] = (module, alias.name)
    elif isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING":
        pass  # not run
    elif not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):  # a docstring
        _add_constants(found, statement)


def _add_constants(found: Definitions, statement: ast.stmt) -> None:
    stored = (node for node in ast.walk(statement) if isinstance(node, ast.Name))
    names = sorted({node.id for node in stored if isinstance(node.ctx, ast.Store)})
    for name in names:
        _put(found, found.constants, name, statement)
    if isinstance(value := getattr(statement, "value", None), ast.Dict) and len(names) == 1:
        keys = [
            key.value for key in value.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)
        ]
        if len(keys) == len(value.keys) > 0:
            rows = dict(zip(keys, value.values, strict=True))
            empty = ast.Dict(keys=[], values=[])
            rest = type(statement)(
                **{each: getattr(statement, each) for each in statement._fields} | {"value": empty}
            )
            found.tables[names[0]] = _table(rows, rest)
    if not names:
        found.unnamed.add(ast.dump(statement))


def _table(rows: Mapping[str, ast.AST], rest: ast.AST) -> Table:
    return Table(
        rows={key: ast.dump(row) for key, row in rows.items()},
        texts={key: frozenset(_texts(row)) for key, row in rows.items()},
        rest=ast.dump(rest),
    )


def _texts(row: ast.AST) -> Iterator[str]:
    """Yield the words by which others may know a row, such as PCI IDs, but no sentences."""
    for node in ast.walk(row):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value:
            words = node.value.split()
            yield from (
                word
                for word in words
                if len(word) >= LEAST_LETTERS and (len(words) == 1 or any(map(str.isdigit, word)))
            )


def _may_enter(decorators: Iterable[ast.expr]) -> bool:
    words = (re.split(r"[.(]", ast.unparse(decorator))[0] for decorator in decorators)
    return any(word not in PLAIN_DECORATORS for word in words)


def _add_class(found: Definitions, statement: ast.ClassDef) -> None:
    """Add the methods as functions; the class is all the rest, and their names with their signatures."""
    rest = ast.ClassDef(**{name: getattr(statement, name) for name in statement._fields} | {"body": []})
    for part in statement.body:
        if isinstance(part, FUNCTIONS):
            _put(found, found.functions, f"{statement.name}.{part.name}", part)
            rest.body.append(
                type(part)(**{name: getattr(part, name) for name in part._fields} | {"body": []})
            )
        else:
            rest.body.append(part)
    _put(found, found.classes, statement.name, rest)
    if any("kw_only=True" in ast.unparse(each) for each in statement.decorator_list) and not statement.bases:
        rows = {
            part.target.id: part
            for part in rest.body
            if isinstance(part, ast.AnnAssign) and part.value and isinstance(part.target, ast.Name)
        }
        rest.body = [part for part in rest.body if part not in rows.values()]
        found.tables[statement.name] = _table(rows, rest)


def _put(found: Definitions, kind: dict[str, str], name: str, tree: ast.AST) -> None:
    kind[name] = kind.get(name, "") + ast.dump(tree)
    words = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    words |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    found.reads.setdefault(name, set()).update(words)


def affected(
    before: Mapping[str, str | None], now: Mapping[str, str | None], sources: Mapping[str, str]
) -> Change:
    """Return the effect of changes of modules.

    before, now: the changed modules' sources; None if the module did not exist, or does not exist any more.
    sources: those of all modules, as they are now.
    """
    functions: set[Name] = set()
    constants: set[Name] = set()
    modules: set[str] = set()
    rows: set[ChangedRows] = set()
    touched: set[str] = set()
    for module, text in now.items():
        earlier = before[module]
        if text is None or earlier is None:
            modules.add(module)
            continue
        old, new = definitions(earlier, module), definitions(text, module)
        by_table = dict(_changed_rows(module, old, new))
        rows.update(by_table.values())
        own = {*_changed(old.constants, new.constants), *_changed(old.imports, new.imports)} - by_table.keys()
        changed = set(_changed(old.functions, new.functions))
        functions |= {(module, name) for name in changed}
        constants |= {(module, name) for name in own}
        classes = set(_changed(old.classes, new.classes)) - by_table.keys()
        renewed = {name for name in new.names - old.names if hasattr(builtins, name)}
        if old.unnamed != new.unnamed or renewed or new.entered - old.entered or classes:
            modules.add(module)
        if own or changed or module in modules:
            touched.add(module)
    touched |= modules
    spread = _spread(functions, constants, modules, sources)
    return replace(spread, rows=frozenset(rows), touched=frozenset(touched))


def _changed_rows(module: str, old: Definitions, new: Definitions) -> Iterator[tuple[str, ChangedRows]]:
    """Yield the changed rows of tables in which only rows changed, by the name of the table.

    A field of a class that stays and differs is no row, because instances have it without naming it.
    """
    for name in old.tables.keys() & new.tables.keys():
        before, now = old.tables[name], new.tables[name]
        keys = {key for key in {*before.rows, *now.rows} if before.rows.get(key) != now.rows.get(key)}
        is_another = name in old.classes and not keys <= before.rows.keys() ^ now.rows.keys()
        if keys and before.rest == now.rest and not is_another:
            texts = (table.texts.get(key, frozenset()) for table in (before, now) for key in keys)
            yield name, ChangedRows(module, frozenset(keys.union(*texts)), frozenset({*now.rows} - keys))


def _changed(old: Mapping[str, object], new: Mapping[str, object]) -> Iterator[str]:
    """Names whose definition is another one, or is gone."""
    return (name for name, text in old.items() if new.get(name) != text)


def _spread(
    functions: set[Name], constants: set[Name], modules: set[str], sources: Mapping[str, str]
) -> Change:
    """Follow constants to all that names them."""
    pending, known = sorted(constants), dict[str, Definitions]()
    while pending:
        origin, constant = pending.pop()
        for module in _mentioning(constant, sources):
            found = known.setdefault(module, definitions(sources[module]))
            for name in _readers(found, module == origin, (origin, constant)):
                if name in found.functions:
                    functions.add((module, name))
                elif name in found.classes:
                    modules.add(module)
                elif (module, name) not in constants:
                    constants.add((module, name))
                    pending.append((module, name))
    return Change(frozenset(functions), frozenset(constants), frozenset(modules))


def _mentioning(word: str, sources: Mapping[str, str]) -> Iterable[str]:
    pattern = re.compile(rf"\b{re.escape(word)}\b")
    return [module for module, text in sources.items() if pattern.search(text)]


def _readers(found: Definitions, is_own: bool, constant: Name) -> Iterator[str]:
    """Names whose definition reads the constant, and names of it that others may import from here."""
    origin, name = constant
    package, _, last = origin.rpartition(".")
    local = {each for each, source in found.imports.items() if source == constant}
    if is_own or any(source in ((package, last), ("", origin)) for source in found.imports.values()):
        local.add(name)  # an attribute of the module is spelt alike
    yield from (each for each, words in found.reads.items() if words & local)
    yield from (each for each in local if each in found.imports and not is_own)
