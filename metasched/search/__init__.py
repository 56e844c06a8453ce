"""Search: which candidates to measure next, given what was measured.

Importing the package enters the built-in strategies into their registry.
"""

from metasched.search import annealing, baselines, evolution

__all__ = ["annealing", "baselines", "evolution"]
