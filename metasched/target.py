"""Target: the machine a program is compiled for, as one frozen value.

A target is read from this machine (`Target.native()`), from a tag (`aws/cpu/c5.9xlarge`), from a
TVM-like text (`llvm -mcpu=haswell -num-cores=4`) or from a mapping. Reading it imports no compiler:
feature names are LLVM's, from the tables of `hardware`.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import hashlib
import json
import os
import platform
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from metasched.errors import RegistryError, TargetError, brief
from metasched.hardware import (
    CPU_FEATURES,
    KNOWN_FEATURES,
    cache_sizes,
    native_cpu,
    native_features,
    usable_cores,
)
from metasched.registry import Registry

_KINDS = {"cpu": "cpu", "llvm": "cpu", "c": "cpu", "cuda": "cuda", "nvptx": "cuda"}
_ALIASES = {
    "arch": "mcpu", "mtriple": "triple", "mattr": "features", "num-cores": "num_cores",
    "thread_warp_size": "warp_size", "max_num_threads": "max_threads_per_block",
    "shared_memory_per_block": "max_shared_memory_per_block", "device": "model",
}  # fmt: skip
_IGNORED = frozenset({"keys", "host", "libs", "tag"})
_MOST_CORES = 8192  # what Linux is built for at most
_VECTORS = (0, 64, 128, 256, 512, 1024, 2048)
_LARGEST = 1 << 48  # of every other number: the largest cache or memory that a field may name
# Every processor of the architecture has these; LLVM cannot pass a float without them.
_BASE = {"x86_64": ("sse", "sse2")}
_GPU = {
    "max_threads_per_block": 1024,
    "max_shared_memory_per_block": 49152,
    "registers_per_block": 65536,
    "warp_size": 32,
}


@dataclass(frozen=True, slots=True)
class Target:
    """A machine: what code may use and what schedules should know of it.

    Attributes:
        kind: `cpu` (TVM's `llvm`) or `cuda`.
        triple: LLVM target triple.
        mcpu: LLVM name of the processor; for GPUs the architecture, `sm_90a`.
        features: LLVM feature names that are there, sorted.
        num_cores: physical cores usable by this process; on GPUs 0.
        vector_bits: width of the widest vector register; 0 where there is none.
        vector_registers: number of vector registers.
        cache_line: bytes of a cache line.
        l1_bytes, l2_bytes: data caches of one core.
        l3_bytes: last cache of the chip, 0 where there is none or it is unknown.
        max_threads_per_block, max_shared_memory_per_block: GPU limits, 0 on CPUs.
        registers_per_block, warp_size: GPU limits, 0 on CPUs.
        model: free text naming the device, no part of the identity.
    """

    kind: str = "cpu"
    triple: str = "x86_64-unknown-linux-gnu"
    mcpu: str = "x86-64"
    features: tuple[str, ...] = ()
    num_cores: int = 1
    vector_bits: int = 128
    vector_registers: int = 16
    cache_line: int = 64
    l1_bytes: int = 32768
    l2_bytes: int = 1 << 20
    l3_bytes: int = 0
    max_threads_per_block: int = 0
    max_shared_memory_per_block: int = 0
    registers_per_block: int = 0
    warp_size: int = 0
    model: str = field(default="", compare=False)

    @staticmethod
    def of(source: Target | str | Mapping[str, Any] | None = None) -> Target:
        """A target from None or "native" (this machine), a tag, a text of options or a mapping.

        Raises TargetError naming the unknown word and its nearest neighbours.
        """
        if isinstance(source, Target):
            return source
        if source is None or source == "native":
            return Target.native()
        if isinstance(source, str):
            return _from_text(source)
        if isinstance(source, Mapping):
            return _from_mapping(source)
        raise TargetError(
            f"a target is None, a text, a mapping or a Target, not {type(source).__name__}"
        )

    @staticmethod
    def native() -> Target:
        """This machine: /proc/cpuinfo's features, /sys's caches, the affinity mask's cores."""
        return _native(usable_cores())

    @property
    def is_gpu(self) -> bool:
        return self.kind == "cuda"

    @property
    def arch(self) -> str:
        """The instruction set: the first word of the triple."""
        return self.triple.split("-")[0]

    def has(self, *features: str) -> bool:
        """Whether all these LLVM features are there; an unknown name raises TargetError."""
        for name in features:
            if name not in self.features and name not in _all_features():
                near = _near(name, _all_features())
                raise TargetError(f"no CPU feature is called {brief(name)}{near}")
        return all(name in self.features for name in features)

    @property
    def llvm_features(self) -> str:
        """LLVM's attribute text: each known feature switched on or off, whatever mcpu implies."""
        known = dict.fromkeys((*KNOWN_FEATURES.get(self.arch, ()), *self.features))
        return ",".join(f"{'+' if name in self.features else '-'}{name}" for name in known)

    @property
    def key(self) -> str:
        """A stable text that is equal for equal targets: readable head, digest of everything."""
        data = json.dumps(self._identity(), sort_keys=True, separators=(",", ":"))
        digest = hashlib.blake2b(data.encode(), digest_size=6).hexdigest()
        cores = "" if self.is_gpu else f"/{self.num_cores}"
        return f"{self.kind}/{self.mcpu}{cores}/{digest}"

    def to_json(self) -> dict[str, Any]:
        """Plain data that `Target.of` reads back."""
        data = dataclasses.asdict(self)
        data["features"] = list(self.features)
        return data

    def supports(self, other: Target) -> str | None:
        """None when code made for `other` can run on this target, else the reason in words."""
        if self.kind != other.kind:
            return f"it was made for kind {other.kind!r}, this target is {self.kind!r}"
        if self.is_gpu:
            return self._supports_gpu(other)
        if self.arch != other.arch:
            return f"it was made for {other.arch}, this target is {self.arch}"
        missing = [name for name in other.features if name not in self.features]
        if missing:
            noun = "CPU feature" if len(missing) == 1 else "CPU features"
            return f"this target lacks the {noun} {', '.join(missing)}"
        return None

    def require_here(self, *, timed: bool = False) -> None:
        """Nothing when this machine can run code that is compiled for this target.

        Args:
            timed: the code is to be timed: this machine must have as many processors too.

        Raises TargetError with the reason in one sentence.
        """
        reason = Target.native().supports(self)
        if self.is_gpu:
            reason = "there is no code generation for GPUs"
        elif reason is None and not re.fullmatch(
            rf"{self.arch}(-\w+)?-linux(-gnu|-musl)?", self.triple
        ):
            reason = f"it was made for {self.triple}, this machine runs Linux"
        if reason is not None:
            reason = reason.replace("this target", "this machine")
            raise TargetError(f"a kernel for {self.key} cannot be loaded here: {reason}")
        there = len(os.sched_getaffinity(0))
        if timed and self.num_cores > there:
            raise TargetError(
                f"a kernel for {self.key} cannot be timed here: the target has {self.num_cores} "
                f"cores, this machine lets the process use {there}; write -num-cores={there}"
            )

    def differences(self, other: Target) -> list[str]:
        """What sets `other` apart from this target: one short sentence a field."""
        mine, theirs = self._identity(), other._identity()
        notes = [
            f"{name} {theirs[name]} instead of {mine[name]}"
            for name in mine
            if name != "features" and mine[name] != theirs[name]
        ]
        lacks = sorted(set(theirs["features"]) - set(mine["features"]))
        extra = sorted(set(mine["features"]) - set(theirs["features"]))
        if lacks:
            notes.append(f"features only there: {', '.join(lacks)}")
        if extra:
            notes.append(f"features only here: {', '.join(extra)}")
        return notes

    def _identity(self) -> dict[str, Any]:
        data = self.to_json()
        del data["model"]
        return data

    def _supports_gpu(self, other: Target) -> str | None:
        mine, theirs = _sm_version(self.mcpu), _sm_version(other.mcpu)
        exact = other.mcpu[-1:].isalpha()  # sm_90a code runs on nothing else
        if mine < theirs or (exact and self.mcpu != other.mcpu):
            return f"it was made for {other.mcpu}, this target is {self.mcpu}"
        for name in _GPU:
            if getattr(self, name) < getattr(other, name):
                return f"it may need {name} {getattr(other, name)}, here are {getattr(self, name)}"
        return None


TARGETS: Registry[Target] = Registry("target")


@functools.cache
def _native(cores: int) -> Target:
    machine = platform.machine() or "x86_64"
    arch = {"amd64": "x86_64", "arm64": "aarch64"}.get(machine.lower(), machine)
    features = native_features(arch)
    line, l1, l2, l3 = cache_sizes()
    bits, registers = _vectors(arch, features)
    mcpu, model = native_cpu(arch, features)
    return Target(
        "cpu", f"{arch}-unknown-linux-gnu", mcpu, tuple(sorted(features)), cores,
        bits, registers, line, l1, l2, l3, model=model,
    )  # fmt: skip


def _vectors(arch: str, features: Iterable[str]) -> tuple[int, int]:
    """Width in bits and number of the widest vector registers."""
    if arch == "aarch64":
        return 128, 32
    if "avx512f" in features:
        return 512, 32
    return (256 if "avx" in features else 128), 16


def _from_text(text: str) -> Target:
    """A tag, a kind, or a kind followed by options: `llvm -mcpu=haswell -num-cores=4`."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise TargetError(f"target {brief(text)} cannot be read: {error}") from None
    if text in TARGETS:
        return TARGETS.get(text)
    if not words or words[0] not in _KINDS:
        names = ["native", *_KINDS, *TARGETS.names()]
        raise TargetError(f"no target is called {brief(text)}{_near(text, names)}")
    if len(words) == 1 and _KINDS[words[0]] == "cpu":
        return Target.native()
    options: dict[str, Any] = {"kind": words[0]}
    rest = iter(words[1:])
    for word in rest:
        name, sign, value = word.lstrip("-").partition("=")
        if not sign:  # -name value
            value = next(rest, "-")
        if not word.startswith("-") or (not sign and value.startswith("-")):
            raise TargetError(
                f"target {brief(text)}: {brief(word)} is no option; write -name=value"
            )
        options[name] = value
    return _from_mapping(options)


def _from_mapping(data: Mapping[str, Any]) -> Target:
    values: dict[str, Any] = {}
    names = [f.name for f in dataclasses.fields(Target)]
    for given, value in data.items():
        if not isinstance(given, str):
            raise TargetError(f"a target has fields by name, not {brief(given)}")
        name = _ALIASES.get(given, given.replace("-", "_"))
        if given in _IGNORED:
            continue
        if name not in names:
            raise TargetError(f"a target has no {brief(given)}{_near(given, [*names, *_ALIASES])}")
        values[name] = value
    if isinstance(data.get("tag"), str):
        base = _from_text(data["tag"])
        return _checked({**dataclasses.asdict(base), **values})
    return _checked(values)


def _checked(values: dict[str, Any]) -> Target:
    """A target of these fields, whose types are checked; missing ones follow from those given."""
    kind = values.setdefault("kind", "cpu")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise TargetError(f"no target kind is called {brief(kind)}{_near(str(kind), _KINDS)}")
    values["kind"] = kind = _KINDS[kind]
    types = {f.name: f.type for f in dataclasses.fields(Target)}
    for name, value in values.items():
        if types[name] == "int":
            values[name] = _integer(name, value)
        elif name != "features" and not isinstance(value, str):
            raise TargetError(f"target field {name!r} is a text, not {brief(value)}")
    if kind == "cuda":
        gpu: dict[str, Any] = {
            "triple": "nvptx64-nvidia-cuda", "mcpu": "sm_70", "num_cores": 0, "vector_bits": 128,
            "vector_registers": 0, "cache_line": 128, "l1_bytes": 0, "l2_bytes": 0, **_GPU,
        }  # fmt: skip
        _sm_version(values.get("mcpu", "sm_70"))
        values["features"] = tuple(sorted(_changed((), values.get("features", ()))))
        return Target(**{**gpu, **values})
    return _cpu(values)


def _cpu(values: dict[str, Any]) -> Target:
    triple = values.setdefault("triple", f"{platform.machine() or 'x86_64'}-unknown-linux-gnu")
    arch = triple.split("-")[0]
    mcpu = values.setdefault("mcpu", "x86-64" if arch == "x86_64" else "generic")
    if isinstance(values.get("features", "+"), str):
        found = _changed(_implied(mcpu, arch), values.get("features", ""))
    else:
        found = _changed((), values["features"])
    values["features"] = tuple(sorted(found | {*_BASE.get(arch, ())}))
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
    return Target(**values)


def _implied(mcpu: str, arch: str) -> tuple[str, ...]:
    """The features that the name of a processor stands for."""
    native = Target.native()
    if mcpu == native.mcpu and arch == native.arch:
        return native.features
    if mcpu in CPU_FEATURES:
        return CPU_FEATURES[mcpu] if mcpu != "generic" or arch == "aarch64" else ()
    near = _near(mcpu, CPU_FEATURES)
    raise TargetError(f"mcpu {brief(mcpu)} is not known{near}; or give its features as a list")


def _integer(name: str, value: Any) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        raise TargetError(f"target field {name!r} is a number, not {brief(value)}") from None
    if isinstance(value, bool) or not 0 <= number <= _LARGEST or number != float(value):
        raise TargetError(
            f"target field {name!r} is a whole number from 0 to {_LARGEST}, not {brief(value)}"
        )
    return number


def _changed(base: Iterable[str], value: Any) -> set[str]:
    """Features of a processor after LLVM's `+a,-b` or the names of a list."""
    words = value.split(",") if isinstance(value, str) else value
    if not isinstance(words, (list, tuple)) or not all(isinstance(w, str) for w in words):
        raise TargetError(f"target features are a list of names or +a,+b, not {brief(value)}")
    found, known = set(base), _all_features()
    for word in filter(None, (w.strip() for w in words)):
        name = word.lstrip("+-")
        if word.startswith("-"):
            found.discard(name)
        elif name in known:
            found.add(name)
        else:
            raise TargetError(f"no CPU feature is called {brief(name)}{_near(name, known)}")
    return found


def _all_features() -> list[str]:
    return [name for names in KNOWN_FEATURES.values() for name in names]


def _sm_version(arch: str) -> int:
    digits = arch.removeprefix("sm_").rstrip("af")
    if not arch.startswith("sm_") or not digits.isdigit():
        raise TargetError(f"a CUDA architecture is sm_ and a number, like sm_86, not {brief(arch)}")
    return int(digits)


def _near(name: str, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(name[:100], [str(n) for n in names], n=3)
    return f"; did you mean {', '.join(close)}?" if close else ""


def register_target(tag: str, source: Mapping[str, Any] | str, *, override: bool = False) -> Target:
    """Enter a target under a tag; a taken tag raises TargetError unless `override`."""
    try:
        return TARGETS.register(tag, Target.of(source), override=override)
    except RegistryError as error:
        raise TargetError(str(error)) from None


def _tags() -> None:
    for tag, arch in {
        "nvidia/nvidia-v100": "sm_70", "nvidia/nvidia-t4": "sm_75",
        "nvidia/geforce-rtx-2080": "sm_75",
        "nvidia/nvidia-a100": "sm_80", "nvidia/geforce-rtx-3070": "sm_86",
        "nvidia/geforce-rtx-3080": "sm_86", "nvidia/geforce-rtx-3090": "sm_86",
        "nvidia/geforce-rtx-4090": "sm_89", "nvidia/nvidia-h100": "sm_90a",
        "nvidia/nvidia-h200": "sm_90a",
    }.items():  # fmt: skip
        register_target(tag, {"kind": "cuda", "mcpu": arch, "model": tag})
    for name, cores in {"large": 1, "xlarge": 2, "2xlarge": 4, "4xlarge": 8, "9xlarge": 18,
                        "12xlarge": 24, "18xlarge": 36, "24xlarge": 48}.items():  # fmt: skip
        mcpu = "cascadelake" if name in ("12xlarge", "24xlarge") else "skylake-avx512"
        register_target(f"aws/cpu/c5.{name}", {"kind": "cpu", "mcpu": mcpu, "num_cores": cores,
                                               "triple": "x86_64-unknown-linux-gnu"})  # fmt: skip


_tags()
