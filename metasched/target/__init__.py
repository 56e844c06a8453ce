"""target: machines as frozen values, one subclass of Target for each kind."""

from metasched.target.cpu import ON_CPUS, Cpu, cpu_of
from metasched.target.cuda import Gpu
from metasched.target.description import (
    KINDS,
    TARGETS,
    Target,
    register_target,
    target_kind,
)
from metasched.target.suited import ForTargets, kinds_of

__all__ = [
    "KINDS", "ON_CPUS", "TARGETS", "Cpu", "ForTargets", "Gpu", "Target", "cpu_of",
    "kinds_of", "register_target", "target_kind",
]  # fmt: skip
