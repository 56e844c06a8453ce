"""The TVMScript-like dialect: reads programs from text and prints them as text."""

from metasched.script.parser import ir_module, parse, prim_func
from metasched.script.printer import script, script_with_marks

__all__ = ["ir_module", "parse", "prim_func", "script", "script_with_marks"]
