"""Text in, text out: the TVMScript-like dialect."""

from metasched.script.parser import ir_module, parse, prim_func
from metasched.script.printer import script, script_with_marks

__all__ = ["ir_module", "parse", "prim_func", "script", "script_with_marks"]
