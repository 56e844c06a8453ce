"""What this machine is: CPU name, features, caches and usable cores, read from /proc and /sys.

Feature names are LLVM's. `CPU_FEATURES` says what a processor name implies, for targets that are
not this machine. The tables are kept here, because LLVM's own differ from what machines have: its
`emeraldrapids` implies AMX, which virtual machines on such processors often lack.
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
import platform
from collections.abc import Iterable
from pathlib import Path

_V2 = ("cx16", "popcnt", "sahf", "sse", "sse2", "sse3", "sse4.1", "sse4.2", "ssse3")
_V3 = (*_V2, "avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe")
_V4 = (*_V3, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")
_ICE = (*_V4, "avx512bitalg", "avx512ifma", "avx512vbmi", "avx512vbmi2", "avx512vnni",
        "avx512vpopcntdq", "gfni", "vaes", "vpclmulqdq")  # fmt: skip
_SPR = (*_ICE, "amx-bf16", "amx-int8", "amx-tile", "avx512bf16", "avx512fp16", "avxvnni")

_ARM = ("neon",)
_ARM_DOT = (*_ARM, "dotprod", "fullfp16")
_ARM_MATRIX = (*_ARM_DOT, "bf16", "i8mm")

CPU_FEATURES: dict[str, dict[str, tuple[str, ...]]] = {
    "x86_64": {
        "x86-64": ("sse", "sse2"), "x86-64-v2": _V2, "x86-64-v3": _V3, "x86-64-v4": _V4,
        "nehalem": _V2, "haswell": _V3, "core-avx2": _V3, "broadwell": _V3, "skylake": _V3,
        "alderlake": (*_V3, "avxvnni", "gfni", "vaes", "vpclmulqdq"),
        "skylake-avx512": _V4, "cascadelake": (*_V4, "avx512vnni"),
        "cooperlake": (*_V4, "avx512vnni", "avx512bf16"),
        "icelake-client": _ICE, "icelake-server": _ICE, "tigerlake": _ICE,
        "sapphirerapids": _SPR, "emeraldrapids": _SPR, "graniterapids": (*_SPR, "amx-fp16"),
        "znver1": _V3, "znver2": _V3, "znver3": (*_V3, "vaes", "vpclmulqdq"),
        "znver4": (*_ICE, "avx512bf16"), "znver5": (*_ICE, "avx512bf16", "avxvnni"),
    },
    "aarch64": {
        "generic": _ARM, "cortex-a53": _ARM, "cortex-a57": _ARM, "cortex-a72": _ARM,
        "cortex-a55": _ARM_DOT, "cortex-a76": _ARM_DOT, "cortex-a78": _ARM_DOT,
        "cortex-x1": _ARM_DOT, "neoverse-n1": _ARM_DOT,
        "neoverse-v1": (*_ARM_MATRIX, "fp16fml", "sve"),
        "neoverse-n2": (*_ARM_MATRIX, "fp16fml", "sve", "sve2"),
        "neoverse-v2": (*_ARM_MATRIX, "fp16fml", "sve", "sve2"),
        "apple-m1": (*_ARM_DOT, "fp16fml"), "apple-m2": (*_ARM_MATRIX, "fp16fml"),
        "apple-m3": (*_ARM_MATRIX, "fp16fml"), "apple-m4": (*_ARM_MATRIX, "fp16fml"),
        "ampere1": _ARM_MATRIX,
    },
}  # fmt: skip
"""Architecture -> name of a processor -> the LLVM features that the name implies."""

BASE_FEATURES = {"x86_64": ("sse", "sse2"), "aarch64": ("neon",)}
"""What every processor of an architecture has; without it LLVM cannot pass a float."""

# LLVM feature -> the kernel's flag in /proc/cpuinfo, where the two differ.
_FLAGS = {
    "x86_64": {
        "sse3": "pni", "sse4.1": "sse4_1", "sse4.2": "sse4_2", "bmi": "bmi1", "lzcnt": "abm",
        "sahf": "lahf_lm", "amx-bf16": "amx_bf16", "amx-int8": "amx_int8", "amx-tile": "amx_tile",
        "amx-fp16": "amx_fp16", "avx512bf16": "avx512_bf16", "avx512bitalg": "avx512_bitalg",
        "avx512fp16": "avx512_fp16", "avx512vbmi2": "avx512_vbmi2", "avx512vnni": "avx512_vnni",
        "avx512vpopcntdq": "avx512_vpopcntdq", "avxvnni": "avx_vnni",
        "avxvnniint8": "avx_vnni_int8", "avxifma": "avx_ifma",
        "avx512vp2intersect": "avx512_vp2intersect",
    },
    "aarch64": {
        "neon": "asimd", "dotprod": "asimddp", "fullfp16": "asimdhp", "fp16fml": "asimdfhm",
    },
}  # fmt: skip
KNOWN_FEATURES: dict[str, tuple[str, ...]] = {
    "x86_64": (*_SPR, "amx-fp16", "avxvnniint8", "avxifma", "avx512vp2intersect"),
    "aarch64": ("neon", "dotprod", "fullfp16", "fp16fml", "bf16", "i8mm", "sve", "sve2"),
}
UNUSED_FEATURES: dict[str, tuple[str, ...]] = {
    "x86_64": ("sse4a", "xop", "fma4", "tbm"),  # of AMD alone; LLVM shuffles bytes by sse4a's extrq
    "aarch64": ("complxnum", "rcpc"),
}
"""Features that LLVM's names of processors imply and whose instructions LLVM uses unasked. No
target says whether a machine has them, so code never uses them."""

# The features above that LLVM's names of AArch64 versions imply.
VERSION_FEATURES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("v8a", "v8.1a", "v8.2a", "v8.3a"), ("neon",)),
    **dict.fromkeys(("v8.4a", "v8.5a"), ("neon", "dotprod")),
    **dict.fromkeys(("v8.6a", "v8.7a", "v8.8a"), ("neon", "dotprod", "bf16", "i8mm")),
    "v9a": ("neon", "dotprod", "fullfp16", "sve", "sve2"),
}
# family 6 of Intel by model number; AMD by family below
_INTEL = {
    60: "haswell", 63: "haswell", 69: "haswell", 70: "haswell", 61: "broadwell", 71: "broadwell",
    79: "broadwell", 86: "broadwell", 78: "skylake", 94: "skylake", 142: "skylake", 158: "skylake",
    85: "skylake-avx512", 106: "icelake-server", 108: "icelake-server", 125: "icelake-client",
    126: "icelake-client", 140: "tigerlake", 141: "tigerlake", 143: "sapphirerapids",
    151: "alderlake", 154: "alderlake", 183: "alderlake", 186: "alderlake",
    173: "graniterapids", 174: "graniterapids", 207: "emeraldrapids",
}  # fmt: skip
# AArch64 by the kernel's numbers of implementer and part.
_ARM_PARTS = {
    (0x41, 0xD03): "cortex-a53", (0x41, 0xD05): "cortex-a55", (0x41, 0xD07): "cortex-a57",
    (0x41, 0xD08): "cortex-a72", (0x41, 0xD0B): "cortex-a76", (0x41, 0xD41): "cortex-a78",
    (0x41, 0xD44): "cortex-x1", (0x41, 0xD0C): "neoverse-n1", (0x41, 0xD40): "neoverse-v1",
    (0x41, 0xD49): "neoverse-n2", (0x41, 0xD4F): "neoverse-v2", (0xC0, 0xAC3): "ampere1",
}  # fmt: skip


BINDING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
"""Variables by which users ask an OpenMP runtime to bind its threads to processors."""


def _cpuinfo(path: str = "/proc/cpuinfo") -> dict[str, str]:
    """The fields of the first processor."""
    try:
        text = Path(path).read_text()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def native_features(arch: str) -> set[str]:
    """The LLVM features among `KNOWN_FEATURES` that /proc/cpuinfo reports."""
    info = _cpuinfo()
    flags = set((info.get("flags") or info.get("Features") or "").split())
    names = _FLAGS.get(arch, {})
    found = {f for f in KNOWN_FEATURES.get(arch, ()) if names.get(f, f) in flags}
    if "amx-tile" in found and not _allows_tiles():
        found -= {f for f in found if f.startswith("amx-")}
    return found or set(BASE_FEATURES.get(arch, ()))


def _allows_tiles() -> bool:
    """Whether Linux supports AMX's tile registers, which a process must then ask for."""
    mask, arch_prctl, supported = ctypes.c_uint64(), 158, 0x1021
    try:
        refused = ctypes.CDLL(None).syscall(arch_prctl, supported, ctypes.byref(mask))
    except (OSError, AttributeError):
        return False
    return not refused and mask.value >> 17 & 3 == 3  # TILECFG, TILEDATA


def native_cpu(arch: str, features: Iterable[str]) -> tuple[str, str]:
    """LLVM's name of this processor and the vendor's; an unknown one gets its x86-64 level."""
    info, have = _cpuinfo(), set(features)
    model = info.get("model name", "")
    if arch == "aarch64":
        maker, part = (_number(info.get(key)) for key in ("CPU implementer", "CPU part"))
        return _ARM_PARTS.get((maker, part), "generic"), model
    if arch != "x86_64":
        return "generic", model
    family, number = (_number(info.get(key)) for key in ("cpu family", "model"))
    name = ""
    if info.get("vendor_id") == "GenuineIntel" and family == 6:
        name = _INTEL.get(number, "")
        if number == 85 and "avx512vnni" in have:
            name = "cooperlake" if "avx512bf16" in have else "cascadelake"
    elif info.get("vendor_id") == "AuthenticAMD":
        zen4 = family == 25 and (16 <= number <= 31 or number >= 96)
        zen2 = family == 23 and number >= 48
        name = {23: "znver2" if zen2 else "znver1", 25: "znver4" if zen4 else "znver3",
                26: "znver5"}.get(family, "")  # fmt: skip
    levels = [("x86-64-v4", _V4), ("x86-64-v3", _V3), ("x86-64-v2", _V2)]
    fallback = next((level for level, needs in levels if have.issuperset(needs)), "x86-64")
    return name or fallback, model


def _number(text: str | None) -> int:
    try:
        return int(text or "", 0)  # AArch64's are hexadecimal
    except ValueError:
        return -1


def cache_sizes(root: str = "/sys/devices/system/cpu/cpu0/cache") -> tuple[int, int, int, int]:
    """Cache line, L1 data, L2 and L3 in bytes; common values where /sys says nothing."""
    line, sizes = 64, {1: 32768, 2: 1 << 20, 3: 0}
    for index in sorted(Path(root).glob("index*")):
        try:
            level = int((index / "level").read_text())
            kind, size = (index / "type").read_text().strip(), (index / "size").read_text().strip()
            if kind == "Instruction":
                continue
            scale = {"K": 1024, "M": 1 << 20}.get(size[-1], 1)
            sizes[level] = int(size.rstrip("KM")) * scale
            line = int((index / "coherency_line_size").read_text())
        except (OSError, ValueError):
            continue  # a container may hide parts of /sys: keep the common value
    return line, sizes[1], sizes[2], sizes[3]


def usable_cpus() -> set[int]:
    """The processors that this process may use, by number.

    Where variables ask for it, an OpenMP runtime binds the main thread to one processor at its
    first parallel loop. Its other threads, and the places of the runtime, keep the rest.
    """
    cpus = os.sched_getaffinity(0)
    if any(name in os.environ for name in BINDING):
        for file in {line.split(maxsplit=5)[-1] for line in _mapped() if "omp" in line}:
            cpus |= _places(file)
    return cpus


def _mapped() -> list[str]:
    """Lines about the files that are mapped into this process."""
    try:
        return [line for line in Path("/proc/self/maps").read_text().splitlines() if "/" in line]
    except OSError:
        return []


def _places(file: str) -> set[int]:
    """The processors among which an OpenMP runtime of this process distributes its threads."""
    try:
        library = ctypes.CDLL(file, os.RTLD_NOLOAD)
        count = library.omp_get_num_places()
        sizes = [library.omp_get_place_num_procs(place) for place in range(count)]
    except (OSError, AttributeError):
        return set()
    found: set[int] = set()
    for place, size in enumerate(sizes):
        numbers = (ctypes.c_int * size)()
        library.omp_get_place_proc_ids(place, numbers)
        found.update(numbers)
    return found


def usable_cores() -> int:
    """Physical cores that this process may use, at most what the cgroup's quota allows."""
    cpus = usable_cpus()
    groups = set()
    for cpu in cpus:
        try:
            path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
            groups.add(path.read_text().strip())
        except OSError:
            groups.add(str(cpu))
    return max(1, min(len(groups), _quota() or len(groups)))


def _quota() -> int:
    """Whole cores that the cgroup (version 2, then 1) grants; 0 for no limit."""
    try:
        limit, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return 0 if limit == "max" else math.ceil(int(limit) / int(period))
    except (OSError, ValueError):
        pass
    try:
        base = Path("/sys/fs/cgroup/cpu")
        limit, period = ((base / f"cpu.cfs_{n}_us").read_text() for n in ("quota", "period"))
        return math.ceil(int(limit) / int(period)) if int(limit) > 0 else 0
    except (OSError, ValueError):
        return 0


@functools.cache
def machine_name() -> str:
    """The name of this machine: host name, processor and number of cores."""
    model = _cpuinfo().get("model name") or platform.processor() or platform.machine()
    return f"{platform.node()} {model} {os.cpu_count()}"


def times_compare(a: str, b: str) -> bool:
    """Whether the times of two machines, given by their names, compare.

    They do if processor and number of cores are equal. Host names do not count: a container gets a
    new host name at each start. An empty name is a machine that was not recorded, and compares.
    """
    return not a or not b or a.partition(" ")[2] == b.partition(" ")[2]
