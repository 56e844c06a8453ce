"""The variables of expressions."""

from __future__ import annotations

from metasched.ir.expr import Expr, Let, Var

_NO_VARS: frozenset[Var] = frozenset()


def free_vars(expr: Expr) -> frozenset[Var]:
    """The variables that an expression mentions but does not bind; cached on the node."""
    known = expr._free
    if known is not None:
        return known
    stack = [expr]
    while stack:
        node = stack[-1]
        missing = [c for c in node.children if c._free is None]
        if missing:
            stack.extend(missing)
            continue
        stack.pop()
        if isinstance(node, Var):
            found = frozenset((node,))
        elif not node.children:
            found = _NO_VARS
        else:
            parts = [c._free for c in node.children if c._free is not None]
            found = parts[0] if len(parts) == 1 else _NO_VARS.union(*parts)
            if isinstance(node, Let):
                found = parts[0] | (parts[1] - {node.var})
        object.__setattr__(node, "_free", found)
        known = found
    assert known is not None
    return known


def is_symbol(var: Var) -> bool:
    """Whether a variable has one value in a call: a scalar parameter of a function, or a variable
    in the layout of a parameter.

    False for a variable that no function has yet noted as its own.
    """
    return var._role == "symbol"  # type: ignore[attr-defined, no-any-return]


def is_named(var: Var) -> bool:
    """Whether a statement defines a variable: `x = N[i]`."""
    return var._role == "named"  # type: ignore[attr-defined, no-any-return]


def note_role(var: Var, role: str) -> None:
    """Note what defines a variable; called by `PrimFunc` and `LetStmt` alone."""
    object.__setattr__(var, "_role", role)
