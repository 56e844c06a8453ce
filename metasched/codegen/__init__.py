"""Lowered functions to LLVM text, objects and loaded code."""
