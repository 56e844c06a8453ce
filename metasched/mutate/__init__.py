"""mutate: small changes of a trace's decisions, from which search makes new candidates."""

from metasched.mutate.base import MUTATORS, Mutator, default_mutators, mutate
from metasched.mutate.cpu import cpu_mutators
from metasched.mutate.crossover import crossover

__all__ = ["MUTATORS", "Mutator", "cpu_mutators", "crossover", "default_mutators", "mutate"]
