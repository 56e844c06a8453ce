"""Operators as builders `shape -> PrimFunc`, with NumPy references and the usual shapes."""
