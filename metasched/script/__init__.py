"""Text in, text out: the TVMScript-like dialect."""

from metasched.script.parser import parse
from metasched.script.printer import script, script_with_marks

__all__ = ["parse", "script", "script_with_marks"]
