"""target: machines as frozen values, one subclass of Target for each kind."""

from metasched.target.cpu import Cpu, cpu_of
from metasched.target.cuda import Gpu
from metasched.target.description import KINDS, TARGETS, Target, register_target, target_kind

__all__ = ["KINDS", "TARGETS", "Cpu", "Gpu", "Target", "cpu_of", "register_target", "target_kind"]
