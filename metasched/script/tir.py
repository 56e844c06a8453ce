"""`from metasched.script import tir as T`: the words in which functions are written."""

from __future__ import annotations

from typing import Any

from metasched.ir.op import OPS
from metasched.script.builder import WORDS
from metasched.script.macro import macro
from metasched.script.parser import prim_func
from metasched.script.statements import STATEMENTS, lookup
from metasched.script.words import ALIASES

__all__ = ["inline", "macro", "prim_func"]

inline = macro


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return lookup(name)


def __dir__() -> list[str]:
    words = {*STATEMENTS, *WORDS, *OPS, *ALIASES}
    return sorted({w.split(".")[0] for w in words} | {"prim_func"})
