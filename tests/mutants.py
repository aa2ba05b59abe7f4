"""Small changes of a source, and how to put a changed source into a package that is already imported."""

import ast
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

SWAPS: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot,
    ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.And: ast.Or, ast.Or: ast.And, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
PLAIN = (bool, int, float, str, tuple, frozenset, type(None))


class Mutant(NamedTuple):
    """One change: the line, the outermost function around it (as Python calls it; empty outside of all), what, and the changed source."""

    line: int
    function: str
    what: str
    source: str


def mutants(source: str) -> Iterator[Mutant]:
    """Every place where a small change is possible.

    >>> [mutant.what for mutant in mutants("def f(x):\\n    return x + 1 if x > 0 else x")]
    ['Gt -> GtE', 'Add -> Sub', '0 -> 1', '1 -> 2']
    """
    tree = ast.parse(source)
    skipped = {id(inner) for node in ast.walk(tree) for inner in ast.walk(node) if _is_said(node)}
    inside = dict(_owners(tree, ""))
    for node in ast.walk(tree):
        if id(node) in skipped or not hasattr(node, "lineno"):
            continue
        for what, change, undo in _changes(node):
            change()
            yield Mutant(node.lineno, inside.get(id(node), ""), what, ast.unparse(tree))
            undo()


def _owners(tree: ast.AST, within: str) -> Iterator[tuple[int, str]]:
    """Which function each node of a module or class belongs to; what stands in a signature belongs to none."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from _owners(node, f"{within}{node.name}.")
        elif isinstance(node, ast.FunctionDef):
            yield id(node), f"{within}{node.name}"
            yield from ((id(inner), f"{within}{node.name}") for line in node.body for inner in ast.walk(line))


def _is_said(node: ast.AST) -> bool:
    """Docstrings, messages, types and imports: changes there are not for tests to find."""
    if isinstance(node, ast.Raise | ast.Assert | ast.Import | ast.ImportFrom | ast.JoinedStr):
        return True
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _changes(node: ast.AST) -> Iterator[tuple]:
    def setting(where: object, name: str, new: object) -> tuple:
        old = getattr(where, name)
        return (lambda: setattr(where, name, new)), (lambda: setattr(where, name, old))

    if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
        new = SWAPS[type(node.ops[0])]
        yield f"{type(node.ops[0]).__name__} -> {new.__name__}", *setting(node, "ops", [new(), *node.ops[1:]])
    elif isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in SWAPS:
        new = SWAPS[type(node.op)]
        yield f"{type(node.op).__name__} -> {new.__name__}", *setting(node, "op", new())
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield f"{node.value} -> {not node.value}", *setting(node, "value", not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield f"{node.value} -> {node.value + 1}", *setting(node, "value", node.value + 1)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "not dropped", *setting(node, "op", ast.UAdd())
    if isinstance(node, ast.FunctionDef) and len(node.body) > 1:
        for line in node.body:
            if isinstance(line, ast.Expr | ast.AugAssign | ast.If) and not _is_said(line):
                shorter = [other for other in node.body if other is not line]
                said = ast.unparse(line).splitlines()[0]
                yield f"dropped line {line.lineno}: {said}", *setting(node, "body", shorter)


def graft(module: types.ModuleType, source: str) -> None:
    """Give the functions, defaults and plain constants of an imported module those of a changed source.

    Function objects stay the ones that others imported; what the source registers elsewhere while it runs is registered again.
    """
    twin = types.ModuleType(module.__name__)
    twin.__dict__.update({name: value for name, value in vars(module).items() if name.startswith("__")})
    exec(compile(source, str(module.__file__), "exec"), twin.__dict__)
    _graft(module, twin, module.__name__)


def _graft(old: Any, new: Any, home: str) -> None:
    for name, changed in list(vars(new).items()):
        kept = vars(old).get(name)
        if isinstance(changed, type) and isinstance(kept, type) and changed.__module__ == home and kept is not changed:
            _graft(kept, changed, home)
        elif (there := _function(changed)) is not None and (here := _function(kept)) is not None:
            if there.__module__ == home and here is not there:
                here.__code__ = there.__code__
                here.__defaults__, here.__kwdefaults__ = there.__defaults__, there.__kwdefaults__
        elif isinstance(changed, PLAIN) and not name.startswith("__") and changed != kept:
            setattr(old, name, changed)
        elif isinstance(changed, dict) and isinstance(kept, dict) and not name.startswith("__"):
            kept.update(changed)


def _function(thing: Any) -> types.FunctionType | None:
    """What a name in a module or class runs, under its decorators."""
    thing = getattr(thing, "fget", thing) if isinstance(thing, property) else getattr(thing, "__func__", thing)
    while hasattr(thing, "__wrapped__"):
        thing = thing.__wrapped__
    return thing if isinstance(thing, types.FunctionType) else None
