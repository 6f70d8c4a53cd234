"""Options that several commands have are declared once: two declarations come to differ."""

from __future__ import annotations

import ast
from collections import Counter
from typing import TYPE_CHECKING

from documents import ROOT
from syntax import syntax_tree

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMANDS = sorted((ROOT / "src" / "k8s_rdma" / "cli").rglob("*.py"))


def declared(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """The name and the help of each option: of a parameter, or of a constant that parameters name."""
    for node in ast.walk(tree):
        match node:
            case ast.arg(arg=name, annotation=ast.expr() as value):
                pass
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                pass
            case _:
                continue
        for call in ast.walk(value):
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "typer.Option":
                flags = [part.value for part in call.args if isinstance(part, ast.Constant)]
                texts = [ast.unparse(keyword.value) for keyword in call.keywords if keyword.arg == "help"]
                yield str(flags[0]) if flags else f"--{name.replace('_', '-')}", "".join(texts)


def repeated(trees: list[ast.AST]) -> list[tuple[str, str]]:
    counts = Counter(option for tree in trees for option in declared(tree))
    return sorted(option for option, times in counts.items() if times > 1)


def test_option_of_several_commands_is_declared_once():
    assert len(list(declared(ast.Module([syntax_tree(path) for path in COMMANDS], [])))) > 100
    again = repeated([syntax_tree(path) for path in COMMANDS])
    assert not again, f"declare each of these once, for example in cli/options.py: {again}"


def test_option_that_is_declared_again_is_seen():
    first = ast.parse("def a(run_dir: Annotated[Path, typer.Option(metavar='DIR', help='x')]): ...")
    again = ast.parse("RunDir = Annotated[Path, typer.Option('--run-dir', help='x')]")
    other = ast.parse("def b(run_dir: Annotated[Path, typer.Option(help='y')]): ...")
    assert repeated([first, other]) == []
    assert repeated([first, again]) == [("--run-dir", "'x'")]
