"""What to write instead: hints for constructs and names of Python that scripts do not have."""

from __future__ import annotations

import ast
from collections.abc import Collection

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
    "clip": "write T.min(T.max(x, low), high)",
    "clamp": "write T.min(T.max(x, low), high)",
    "relu": "write T.max(x, 0)",
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
