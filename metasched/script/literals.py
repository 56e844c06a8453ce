"""Calls of T's words with numbers alone, as `T.sqrt(2.0)`, whose value has no type of its own."""

from __future__ import annotations

import ast

from metasched.ir.op import FLOATING

CHOICES = ("if_then_else", "Select")
_WORDS = {*CHOICES, *FLOATING.split(), "pow", "atan2", "hypot"}


def literals(node: ast.expr) -> list[ast.expr]:
    """The arguments of such a call, without the condition of a choice; [] for anything else."""
    if not isinstance(node, ast.Call) or node.keywords:
        return []
    func = node.func
    if not isinstance(func, ast.Attribute) or not isinstance(func.value, ast.Name):
        return []
    numbers = node.args[1:] if func.attr in CHOICES else node.args
    return numbers if func.attr in _WORDS and all(map(_is_number, numbers)) else []


def _is_number(node: ast.expr) -> bool:
    while isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        node = node.operand
    return isinstance(node, ast.Constant) and isinstance(node.value, (int, float))
