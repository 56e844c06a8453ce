"""Compiled programs as callables on NumPy arrays, and as files for other programs."""
