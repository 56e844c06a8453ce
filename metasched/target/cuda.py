"""NVIDIA GPU targets: limits of a block of threads, and the tags of known devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from metasched.errors import TargetError, brief
from metasched.target.description import Target, changed_features, register_target, target_kind
from metasched.target.machine import Level, MachineModel

_LIMITS = (
    "max_threads_per_block", "max_shared_memory_per_block", "registers_per_block", "warp_size",
)  # fmt: skip


@target_kind("cuda", "nvptx")
@dataclass(frozen=True, slots=True)
class Gpu(Target):
    """A GPU; `mcpu` is its architecture, `sm_90a`.

    Attributes:
        vector_bits: widest load of one thread.
        cache_line: bytes of a cache line.
        l3_bytes: last-level cache of the chip, 0 if unknown.
        max_threads_per_block: threads of a block at most.
        max_shared_memory_per_block: bytes of shared memory of a block at most.
        registers_per_block: 32-bit registers of a block.
        warp_size: threads that run in lockstep.
    """

    stored: ClassVar[tuple[str, ...]] = ("l1_bytes", "l2_bytes", "vector_registers")

    kind: str = "cuda"
    triple: str = "nvptx64-nvidia-cuda"
    mcpu: str = "sm_70"
    num_cores: int = 0
    vector_bits: int = 128
    cache_line: int = 128
    l3_bytes: int = 0
    max_threads_per_block: int = 1024
    max_shared_memory_per_block: int = 49152
    registers_per_block: int = 65536
    warp_size: int = 32

    @classmethod
    def completed(cls, values: dict[str, Any]) -> Target:
        """The limits of most devices where none are given."""
        _sm_version(values.get("mcpu", "sm_70"))
        values["features"] = tuple(sorted(changed_features((), values.get("features", ()))))
        return cls(**values)

    def machine_model(self) -> MachineModel:
        """The near memory is the shared memory of a block's threads; registers are per thread."""
        near = max(self.max_shared_memory_per_block, 64)
        own = self.registers_per_block // max(self.max_threads_per_block, 1)
        third = self.l3_bytes or 16 * near
        return MachineModel(
            cores=max(self.num_cores, 1),
            vector_bytes=max(self.vector_bits, 64) // 8,
            registers=own or 1,
            levels=(Level(near, 32.0), Level(near, 16.0, ways=16), Level(third, 6.0)),
        )

    def here(self) -> str | None:
        """No code is made for GPUs."""
        return "there is no code generation for GPUs"

    def runs(self, other: Target) -> str | None:
        mine, theirs = _sm_version(self.mcpu), _sm_version(other.mcpu)
        exact = other.mcpu[-1:].isalpha()  # sm_90a code runs on nothing else
        if mine < theirs or (exact and self.mcpu != other.mcpu):
            return f"it was made for {other.mcpu}, this target is {self.mcpu}"
        for name in _LIMITS:
            if getattr(self, name) < getattr(other, name):
                return f"it may need {name} {getattr(other, name)}, here are {getattr(self, name)}"
        return None


def _sm_version(arch: str) -> int:
    digits = arch.removeprefix("sm_").rstrip("af")
    if not arch.startswith("sm_") or not digits.isdigit():
        raise TargetError(f"a CUDA architecture is sm_ and a number, like sm_86, not {brief(arch)}")
    return int(digits)


for _tag, _arch in {
    "nvidia/nvidia-v100": "sm_70", "nvidia/nvidia-t4": "sm_75",
    "nvidia/geforce-rtx-2080": "sm_75",
    "nvidia/nvidia-a100": "sm_80", "nvidia/geforce-rtx-3070": "sm_86",
    "nvidia/geforce-rtx-3080": "sm_86", "nvidia/geforce-rtx-3090": "sm_86",
    "nvidia/geforce-rtx-4090": "sm_89", "nvidia/nvidia-h100": "sm_90a",
    "nvidia/nvidia-h200": "sm_90a",
}.items():  # fmt: skip
    register_target(_tag, {"kind": "cuda", "mcpu": _arch, "model": _tag})
