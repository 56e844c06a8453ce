"""What to write instead: hints for constructs and names of Python that scripts do not have."""

from __future__ import annotations

import ast
import functools
import re
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
    **dict.fromkeys(("math", "np", "numpy", "torch"), "words of T do the same, as T.exp(x)"),
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
# What to write instead, by the message of an error whose place knows no better hint; … stands for
# any text.
ADVICE: dict[str, str] = {
    "… names need as many values, not …": "write a name for each value",
    "… values for … names": "write a name for each value",
    "… loops need as many variables, … given": "write for i, j in T.grid(m, n), a variable for "
    "each extent",
    "this word opens no scope": "write it as a statement of its own, without `with`",
    "this scope needs a separate `with`": "write one `with` below the other",
    "… is no statement": "assign the value to a name, or store it: A[i] = value",
    "T.… gives no value to assign": "write it as a statement of its own",
    "a variable has a scalar type, not …": "write x: T.int32 = value; memory of more elements is "
    "T.alloc_buffer(shape, dtype)",
    "range takes one to three numbers": "write range(stop), range(start, stop) or "
    "range(start, stop, step)",
    "a name is needed here": "assign to a plain name, or store into an element: A[i] = value",
    "only buffers are stored to, not …": "assign a variable as x = value; memory with elements is "
    "B = T.alloc_buffer(shape, dtype)",
    "operator MatMult has no meaning on …": "write loops that add products, or metasched.einsum "
    "outside",
    "unsupported operand type(s) for …": "compute with numbers and elements, such as A[i, j]",
    "… and … have no common type": "convert one of them, as T.cast(x, dtype)",
    "an operand is an expression or a number, not …": "compute with numbers and elements, such as "
    "A[i, j]",
    "… is not an expression": "give a number or an element, such as A[i, j]",
    "… is a statement and cannot stand inside an expression": "write it in a line of its own",
    "an expression has no attribute …": "x.dtype and x.astype(dtype) are known; functions are "
    "words of T, as T.exp(x)",
    "a buffer has no attribute …": "a script has no operations on whole arrays: write loops over "
    "the elements",
    "… cannot be called: a script calls only words of T": "write words of T, as T.exp(x), or put "
    "statements under @T.macro",
    "… cannot be indexed": "elements belong to buffers: A: T.Buffer(shape, dtype) as a parameter, "
    "or T.alloc_buffer(shape, dtype)",
    "a domain is an extent or a pair (start, stop)": "write T.axis.spatial(n, i), or "
    "T.axis.spatial((start, stop), i)",
    "a region such as A[0:4, i] is needed, not …": "write T.reads(A[i, 0:n]), an index or a slice "
    "for each dimension",
    "data= is A.data of a buffer A, not …": "leave data= out for fresh memory",
    "T.prim_func has no option …": "write @T.prim_func alone, or @T.prim_func(private=True)",
    "a function returns a scalar type, not …": "store arrays into parameters: C[i] = value",
    "parameters are plain: no defaults, *args or keyword-only ones": "take a Python value from "
    "around the function instead",
    "only imports and one definition stand in a text": "put several functions into a class under "
    "@I.ir_module",
    "a module holds functions and I.module_attrs({...})": "compute other values above the class",
    "the bounds have different types, … and …": "convert one of them, as T.int64(n)",
    "the message of an assertion is a text, not …": 'write assert condition, "what is wrong"',
    "… is not a T.handle parameter": "declare the parameter as a: T.handle, or as "
    "A: T.Buffer(shape, dtype) without T.match_buffer",
    "… is matched already": "give each handle one buffer; T.match_buffer(A[0:4], (4,)) is a part",
    "a dictionary with text keys is needed, not …": 'write {"key": value}',
    "T.grid needs an extent for each loop": "write for i, j in T.grid(m, n)",
    "a block's name is a text, not …": 'write with T.block("name")',
    "block … has an init already": "put all first values of the block under one T.init()",
    "T.axis.remap: … loops need as many letters, not …": "write a letter for each loop: "
    'T.axis.remap("SR", [i, k])',
    "T.axis.remap knows …, not …": "S is spatial, R is reduce; T.axis.scan and T.axis.opaque "
    "stand alone",
    "T.match_buffer on a handle needs a shape": "write T.match_buffer(a, (n, m), dtype)",
    "… is not a data type…": 'write "float32", "int8", or a vector such as "int32x8"',
    "Cannot interpret … as a data type": 'write "float32", "int8", or a vector such as "int32x8"',
    "… does not fit in …": "take a wider type, or a number within the type's limits",
    "T.attr: the key is a text, not …": 'write T.attr(node, "key", value)',
    "** needs a dictionary": 'write **{"name": value}',
}
_QUOTED = re.compile(r"""(?<!\w)(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")""")


def advice(message: str) -> str:
    """The hint for a message of the parser; "" when none is known."""
    return next((hint for form, hint in ADVICE.items() if has_form(message, form)), "")


def has_form(message: str, form: str) -> bool:
    """Whether a message has the form of a row of `ADVICE`. Texts in quotes are the user's: their
    words count for nothing."""
    return _pattern(form).fullmatch(_QUOTED.sub("''", message)) is not None


@functools.cache
def _pattern(form: str) -> re.Pattern[str]:
    return re.compile(re.escape(form).replace("…", ".*"), re.DOTALL)


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
