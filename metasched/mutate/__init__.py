"""mutate: small changes of a trace's decisions, from which search makes new candidates."""

from metasched.mutate.base import mutate
from metasched.mutate.crossover import crossover

__all__ = ["crossover", "mutate"]
