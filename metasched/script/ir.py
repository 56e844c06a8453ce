"""`from metasched.script import ir as I`: the words in which modules are written."""

from __future__ import annotations

from metasched.script.parser import ir_module, module_attrs

__all__ = ["ir_module", "module_attrs"]
