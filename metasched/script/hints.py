"""What to write instead: hints for constructs and names of Python that scripts do not have."""

from __future__ import annotations

import ast
from collections.abc import Collection

from metasched.errors import warn
from metasched.ir.expr import Var, as_int
from metasched.ir.stmt import Block, BufferStore
from metasched.ir.visit import free_vars, walk_stmts

_TRY = "check with `assert condition, message`"
_ASYNC = "write the statements one after the other"

EXPRESSIONS: dict[type[ast.AST], str] = {
    ast.ListComp: "compute the list outside and capture it",
    ast.SetComp: "compute the set outside and capture it",
    ast.DictComp: "compute the dictionary outside and capture it",
    ast.GeneratorExp: "compute the values outside and capture them",
    ast.Lambda: "write the expression out",
    ast.NamedExpr: "assign in a statement of its own",
    ast.Set: "compute the set outside and capture it",
    ast.Await: _ASYNC,
    ast.Yield: "store into a buffer",
    ast.YieldFrom: "store into a buffer",
}
STATEMENTS: dict[type[ast.AST], str] = {
    ast.Import: "import at the top of the file",
    ast.ImportFrom: "import at the top of the file",
    ast.Delete: "leave it out: memory ends with its scope",
    ast.Global: "pass a buffer as a parameter and store into it",
    ast.Nonlocal: "pass a buffer as a parameter and store into it",
    ast.Try: _TRY,
    ast.Raise: _TRY,
    ast.ClassDef: "define classes outside of the function",
    ast.AsyncFor: _ASYNC,
    ast.AsyncWith: _ASYNC,
    ast.AsyncFunctionDef: _ASYNC,
    ast.Match: "write if and elif",
}
# Functions of Python, NumPy and math, by the word of T that does the same.
_SAME = {
    "print": "leave it out; look at values with metasched.ir.interp.run",
    "pow": "write x ** 2 or T.pow(x, y)",
    "divmod": "write x // y and x % y",
    "sum": "write a loop that adds to a variable",
    "reversed": "write for i in range(n) and n - 1 - i",
    "enumerate": "write for i in range(n) and A[i]",
    "prange": "write T.parallel(n)",
    "zip": "write for i in range(n) and A[i], B[i]",
    "maximum": "write T.max(a, b)",
    "minimum": "write T.min(a, b)",
    "where": "write T.if_then_else(condition, a, b)",
    "fabs": "write T.abs(x)",
    "dot": "write loops that add products",
    "matmul": "write loops that add products",
    "zeros": "write T.alloc_buffer(shape, dtype) and store 0 into it",
    "empty": "write T.alloc_buffer(shape, dtype)",
}
_TE = (
    "tensor expressions build a function of their own, outside of scripts: "
    "metasched.te.create_prim_func; here write a block for each stage"
)


def name_hint(name: str, words: Collection[str]) -> str:
    """What to write instead of a name that scripts do not have; "" when nothing is known."""
    if name == "te":
        return _TE
    return _SAME.get(name) or (f"write T.{name}" if name in words else "")


def index_hint(node: ast.expr) -> str:
    """The hint for C[y][x]: write C[y, x]."""
    indices: list[str] = []
    while isinstance(node, ast.Subscript):
        indices.insert(0, ast.unparse(node.slice))
        node = node.value
    return f"write {ast.unparse(node)}[{', '.join(indices)}]"


def warn_of_restarts(block: Block, line: int) -> None:
    """Warn of an init that runs again for each value of a spatial axis, so that the sum of the
    iterations before is lost. A user meant a reduce axis."""
    if block.init is None:
        return
    begun = {s.buffer for s in walk_stmts(block.init) if isinstance(s, BufferStore)}
    places = [r for r in block.writes if r.buffer in begun]
    used = frozenset[Var]().union(*(free_vars(x.min) for r in places for x in r.region))
    lost = [v for v in block.iter_vars if v.is_spatial and as_int(v.dom.extent) != 1]
    lost = [v for v in lost if v.var not in used]
    if lost and places and all(x.is_point for r in places for x in r.region):
        axes = " and ".join(v.var.name for v in lost)
        names = " and ".join(dict.fromkeys(r.buffer.name for r in places))
        many = len(lost) > 1
        warn(
            f"line {line}: block {block.name!r} runs T.init again for each value of {axes}, so "
            f"{names} keeps the value of the last iteration only; {axes} {'are' if many else 'is'} "
            f"spatial, and no index of {names}: declare {'them' if many else 'it'} with "
            "T.axis.reduce, or leave T.init out"
        )
