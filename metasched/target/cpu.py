"""CPU targets: what this machine is, what a processor's name implies, which code runs where."""

from __future__ import annotations

import functools
import platform
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from metasched.errors import TargetError, brief
from metasched.hardware import (
    BASE_FEATURES,
    CPU_FEATURES,
    cache_sizes,
    native_cpu,
    native_features,
    usable_cores,
    usable_cpus,
)
from metasched.target.description import (
    Target,
    changed_features,
    near_names,
    register_target,
    target_kind,
)
from metasched.target.machine import TRANSFER, Level, MachineModel
from metasched.target.rates import measured_costs

ON_CPUS = ("cpu",)
"""The target kinds of what users register without naming one."""

_MOST_CORES = 8192  # what Linux is built for at most
_VECTORS = (0, 64, 128, 256, 512, 1024, 2048)
_TRANSFERS = {"znver5": 12.0}
"""`MachineModel.transfer` where it was measured, by LLVM's name of the CPU. A core of a Zen 5 reads
8 KB that the other core wrote at 13 cycles a line, 24 to 100 KB at 7 to 9, beside a program whose
cores read what they wrote themselves."""


@target_kind("cpu", "llvm", "c")
@dataclass(frozen=True, slots=True)
class Cpu(Target):
    """A CPU; `num_cores` counts physical cores.

    Attributes:
        vector_bits: width of the widest vector register; 0 where there is none.
        vector_registers: number of vector registers.
        cache_line: bytes of a cache line.
        l1_bytes, l2_bytes: data caches of one core.
        l3_bytes: last cache of the chip, 0 where there is none or it is unknown.
    """

    stored: ClassVar[tuple[str, ...]] = (
        "max_threads_per_block", "max_shared_memory_per_block", "registers_per_block", "warp_size",
    )  # fmt: skip

    elsewhere: ClassVar[str] = "; `metasched.export` writes files for other machines"

    kind: str = "cpu"
    triple: str = "x86_64-unknown-linux-gnu"
    mcpu: str = "x86-64"
    vector_bits: int = 128
    vector_registers: int = 16
    cache_line: int = 64
    l1_bytes: int = 32768
    l2_bytes: int = 1 << 20
    l3_bytes: int = 0

    @classmethod
    def alone(cls) -> Target | None:
        """This machine, which the kind's name means without options."""
        return _native(usable_cores())

    @classmethod
    def completed(cls, values: dict[str, Any]) -> Target:
        """Triple, features and vector width follow from `mcpu` where they are not given."""
        arch = _architecture(values.get("mcpu", ""))
        triple = values.setdefault("triple", f"{arch}-unknown-linux-gnu")
        arch = triple.split("-")[0]
        mcpu = values.setdefault("mcpu", "x86-64" if arch == "x86_64" else "generic")
        if isinstance(values.get("features", "+"), str):
            found = changed_features(_implied(mcpu, arch), values.get("features", ""))
        else:
            found = changed_features((), values["features"])
        values["features"] = tuple(sorted(found | {*BASE_FEATURES.get(arch, ())}))
        bits, registers = _vectors(arch, values["features"])
        values.setdefault("vector_bits", bits)
        values.setdefault("vector_registers", registers)
        values.setdefault("num_cores", usable_cores())
        if not 1 <= values["num_cores"] <= _MOST_CORES:
            raise TargetError(
                f"num_cores is {values['num_cores']}; a CPU has at least one core "
                f"and at most {_MOST_CORES}"
            )
        if values["vector_bits"] not in _VECTORS:
            sizes = ", ".join(map(str, _VECTORS))
            raise TargetError(f"vector_bits is {values['vector_bits']}; it is one of {sizes}")
        return cls(**values)

    def runs(self, other: Target) -> str | None:
        """None if this CPU has the architecture and the features of the other CPU, else the
        reason."""
        if self.arch != other.arch:
            return f"it was made for {other.arch}, this target is {self.arch}"
        missing = [name for name in other.features if name not in self.features]
        if missing:
            noun = "CPU feature" if len(missing) == 1 else "CPU features"
            return f"this target lacks the {noun} {', '.join(missing)}"
        return None

    def here(self) -> str | None:
        """None when this machine has what the target has, and runs Linux."""
        reason = Target.native().supports(self)
        if reason is not None:
            return reason.replace("this target", "this machine")
        if not re.fullmatch(rf"{self.arch}(-\w+)?-linux(-gnu|-musl)?", self.triple):
            return f"it was made for {self.triple}, this machine runs Linux"
        return None

    def machine_model(self) -> MachineModel:
        """Caches, registers and orders of size of a core of today; see `MachineModel`.

        A cache that is not there holds what the one before it does; without any cache each access
        is one of memory, a line at a time.
        """
        return _machine_model(self)

    def timed_here(self) -> str | None:
        """None when this process may use as many processors as the target has cores."""
        there = len(usable_cpus())
        if self.num_cores <= there:
            return None
        return (
            f"the target has {self.num_cores} cores, this machine lets the process use {there}; "
            f"write -num-cores={there}"
        )


def cpu_of(target: Target) -> Cpu:
    """The target itself, for code that is made for CPUs; TargetError if the target is no CPU."""
    if not isinstance(target, Cpu):
        raise TargetError(f"{target.key} is no CPU")
    return target


@functools.lru_cache(maxsize=64)
def _machine_model(cpu: Cpu) -> MachineModel:
    line = 64
    first = max(cpu.l1_bytes, line)
    second = max(cpu.l2_bytes or first, line)
    third = cpu.l3_bytes or 16 * second
    return MachineModel(
        cores=max(cpu.num_cores, 1),
        vector_bytes=max(cpu.vector_bits, 64) // 8,
        registers=cpu.vector_registers or 1,
        levels=(Level(first, 32.0), Level(second, 16.0, ways=16), Level(third, 6.0)),
        line=line,
        transfer=_TRANSFERS.get(cpu.mcpu, TRANSFER),
        costs=measured_costs(cpu.key),
    )


def read_costs_again() -> None:
    """Let machine models see what instructions were measured to cost since they were made."""
    _machine_model.cache_clear()


@functools.cache
def _native(cores: int) -> Cpu:
    arch = _here()
    features = native_features(arch)
    line, l1, l2, l3 = cache_sizes()
    bits, registers = _vectors(arch, features)
    mcpu, model = native_cpu(arch, features)
    return Cpu(
        triple=f"{arch}-unknown-linux-gnu", mcpu=mcpu, features=tuple(sorted(features)),
        num_cores=cores, vector_bits=bits, vector_registers=registers, cache_line=line,
        l1_bytes=l1, l2_bytes=l2, l3_bytes=l3, model=model,
    )  # fmt: skip


def _vectors(arch: str, features: Iterable[str]) -> tuple[int, int]:
    """Width in bits and number of the widest vector registers."""
    if arch == "aarch64":
        return 128, 32
    if "avx512f" in features:
        return 512, 32
    return (256 if "avx" in features else 128), 16


def _implied(mcpu: str, arch: str) -> tuple[str, ...]:
    """The features that the name of a processor implies."""
    native, known = Target.native(), CPU_FEATURES.get(arch, {})
    if mcpu == native.mcpu and arch == native.arch:
        return native.features
    if mcpu in known:
        return known[mcpu]
    if mcpu == "generic":
        return ()
    other = next((name for name, cpus in CPU_FEATURES.items() if mcpu in cpus), None)
    if other is not None:
        raise TargetError(f"mcpu {brief(mcpu)} is a processor of {other}, the triple is of {arch}")
    near = near_names(mcpu, [*known, "generic"])
    raise TargetError(f"mcpu {brief(mcpu)} is not known; give its features as a list{near}")


def _architecture(mcpu: str) -> str:
    """The architecture of a processor by name; this machine's where several have the name."""
    here = _here()
    if mcpu in CPU_FEATURES.get(here, {}):
        return here
    return next((a for a, cpus in CPU_FEATURES.items() if mcpu in cpus and mcpu != "generic"), here)


def _here() -> str:
    """The architecture of this machine by LLVM's name."""
    machine = (platform.machine() or "x86_64").lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine)


for _name, _cores in {"large": 1, "xlarge": 2, "2xlarge": 4, "4xlarge": 8, "9xlarge": 18,
                      "12xlarge": 24, "18xlarge": 36, "24xlarge": 48}.items():  # fmt: skip
    _mcpu = "cascadelake" if _name in ("12xlarge", "24xlarge") else "skylake-avx512"
    register_target(
        f"aws/cpu/c5.{_name}",
        {"mcpu": _mcpu, "num_cores": _cores, "triple": "x86_64-unknown-linux-gnu"},
    )
for _family, _mcpu, _l2, _l3 in (
    ("c6g", "neoverse-n1", 1 << 20, 32 << 20), ("c7g", "neoverse-v1", 1 << 20, 32 << 20),
    ("c8g", "neoverse-v2", 2 << 20, 36 << 20),
):  # fmt: skip
    for _name, _cores in {"large": 2, "xlarge": 4, "2xlarge": 8, "4xlarge": 16, "8xlarge": 32,
                          "12xlarge": 48, "16xlarge": 64}.items():  # fmt: skip
        register_target(
            f"aws/cpu/{_family}.{_name}",
            {"mcpu": _mcpu, "num_cores": _cores, "l1_bytes": 1 << 16, "l2_bytes": _l2,
             "l3_bytes": _l3},
        )  # fmt: skip
register_target(
    "raspberry-pi/4b-aarch64",
    {"mcpu": "cortex-a72", "num_cores": 4},
)
