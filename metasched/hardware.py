"""What this machine is: CPU name, features, caches and usable cores, read from /proc and /sys.

Feature names are LLVM's. `CPU_FEATURES` says what a processor name implies, for targets that are
not this machine.
"""

from __future__ import annotations

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

CPU_FEATURES: dict[str, tuple[str, ...]] = {
    "x86-64": ("sse", "sse2"), "x86-64-v2": _V2, "x86-64-v3": _V3, "x86-64-v4": _V4,
    "nehalem": _V2, "haswell": _V3, "core-avx2": _V3, "broadwell": _V3, "skylake": _V3,
    "alderlake": (*_V3, "avxvnni", "gfni", "vaes", "vpclmulqdq"),
    "skylake-avx512": _V4, "cascadelake": (*_V4, "avx512vnni"),
    "cooperlake": (*_V4, "avx512vnni", "avx512bf16"),
    "icelake-client": _ICE, "icelake-server": _ICE, "tigerlake": _ICE,
    "sapphirerapids": _SPR, "emeraldrapids": _SPR, "graniterapids": (*_SPR, "amx-fp16"),
    "znver1": _V3, "znver2": _V3, "znver3": (*_V3, "vaes", "vpclmulqdq"),
    "znver4": (*_ICE, "avx512bf16"), "znver5": (*_ICE, "avx512bf16", "avxvnni"),
    "generic": ("neon",), "neoverse-n1": ("neon", "dotprod", "fullfp16"),
    "neoverse-v1": ("neon", "dotprod", "fullfp16", "bf16", "i8mm", "sve"),
    "neoverse-v2": ("neon", "dotprod", "fullfp16", "bf16", "i8mm", "sve", "sve2"),
    "apple-m1": ("neon", "dotprod", "fullfp16"),
}  # fmt: skip

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
    "aarch64": {"neon": "asimd", "dotprod": "asimddp", "fullfp16": "asimdhp"},
}  # fmt: skip
KNOWN_FEATURES: dict[str, tuple[str, ...]] = {
    "x86_64": (*_SPR, "amx-fp16", "avxvnniint8", "avxifma", "avx512vp2intersect"),
    "aarch64": ("neon", "dotprod", "fullfp16", "bf16", "i8mm", "sve", "sve2"),
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
    return found or set(CPU_FEATURES["x86-64"] if arch == "x86_64" else ())


def native_cpu(arch: str, features: Iterable[str]) -> tuple[str, str]:
    """LLVM's name of this processor and the vendor's; an unknown one gets its x86-64 level."""
    info, have = _cpuinfo(), set(features)
    model = info.get("model name", "")
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
    return int(text) if text and text.isdigit() else -1


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


def usable_cores() -> int:
    """Physical cores in this process's affinity mask, at most what the cgroup's quota allows."""
    cpus = os.sched_getaffinity(0)
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
    """A name that tells this machine from others: host name, processor and number of cores."""
    model = _cpuinfo().get("model name") or platform.processor() or platform.machine()
    return f"{platform.node()} {model} {os.cpu_count()}"
