"""Kernels as files for other programs: object, shared library, C header and manifest."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from metasched import __version__, config
from metasched.codegen.compile import Compiled
from metasched.codegen.signature import FIRST_ASSERT, BufferArg, Extent, ScalarArg, Signature
from metasched.errors import ExportError, brief
from metasched.files import path_of
from metasched.ir.dtype import DType
from metasched.runtime.parallel import linked
from metasched.target import Target

MANIFEST_VERSION = 1
MOST_ARGUMENTS = 1000
"""The limit for a kernel called from Python: ctypes passes at most 1024."""
_C_TYPES = {"bool": "uint8_t", "float32": "float", "float64": "double", "float16": "uint16_t",
            "bfloat16": "uint16_t", "float8_e4m3fn": "uint8_t",
            "float8_e5m2": "uint8_t"}  # fmt: skip
_C_WORDS = frozenset(
    """auto break case char const continue default do double else enum extern float for goto if
    inline int long register restrict return short signed sizeof static struct switch typedef union
    unsigned void volatile while""".split()
)
_CPP_WORDS = frozenset(
    """and and_eq asm bitand bitor bool catch char8_t char16_t char32_t class compl concept
    consteval constexpr constinit const_cast co_await co_return co_yield decltype delete
    dynamic_cast explicit export false friend mutable namespace new noexcept not not_eq nullptr
    operator or or_eq private protected public reinterpret_cast requires static_assert static_cast
    template this thread_local throw true try typeid typename using virtual wchar_t xor
    xor_eq""".split()
)
_HEADER_WORDS = {*(f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)), "times"}
"""Types that the header uses, and the last parameter of `NAME_repeat`."""


@dataclass(frozen=True, slots=True)
class Exported:
    """The files written.

    Attributes:
        object, header, manifest: always there.
        library: the shared library, None when there is no C compiler to link it.
        note: why there is no library, else empty.
    """

    object: Path
    header: Path
    manifest: Path
    library: Path | None
    note: str = ""


def export(
    compiled: Compiled,
    target: Target,
    folder: str | Path,
    *,
    name: str | None = None,
    workload_hash: str = "",
) -> Exported:
    """Write NAME.o, NAME.so (when a C compiler is found), NAME.h and NAME.json.

    All files are written under temporary names and renamed at the end, the manifest last. So a full
    disk leaves no half-written file, and older files as they were.

    Args:
        folder: created when missing.
        name: stem of the files; the kernel's C name by default.

    Raises ExportError naming the place and the reason.
    """
    place = path_of(folder, "the folder of an export", ExportError)
    stem = compiled.symbol if name is None else str(name)
    if not stem or Path(stem).name != stem or stem.startswith("."):
        raise ExportError(f"{stem!r} is not a plain file name")
    if compiled.symbol in _C_WORDS:
        raise ExportError(f"{compiled.symbol!r} is a word of C: build the kernel by another `name`")
    try:
        place.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{stem}.", dir=place))
    except OSError as error:
        raise ExportError(f"{place} cannot be written: {error.strerror}") from None
    try:
        return _write(compiled, target, place, work, stem, workload_hash)
    except OSError as error:
        raise ExportError(f"{place}: nothing was exported: {error.strerror or error}") from None
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _write(
    compiled: Compiled, target: Target, place: Path, work: Path, stem: str, workload_hash: str
) -> Exported:
    contents = {
        f"{stem}.o": compiled.object,
        f"{stem}.h": header(
            compiled.signature, stem, target, link_flags(compiled, here=False)
        ).encode(),
    }
    _put(work / f"{stem}.o", compiled.object)
    linked, note = _link(compiled, target, work / f"{stem}.o", work / f"{stem}.so")
    if linked:
        contents[f"{stem}.so"] = (work / f"{stem}.so").read_bytes()
    data = manifest(compiled, target, stem, workload_hash, contents, note)
    contents[f"{stem}.json"] = (json.dumps(data, indent=1) + "\n").encode()
    for file, raw in contents.items():
        _put(work / file, raw)
        os.chmod(work / file, 0o755 if file.endswith(".so") else 0o644)
    for file in contents:
        os.replace(work / file, place / file)
    if not linked:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(place / f"{stem}.so")  # an older library would not match the manifest
    paths = {suffix: place / f"{stem}.{suffix}" for suffix in ("o", "h", "json", "so")}
    library = paths["so"] if linked else None
    return Exported(paths["o"], paths["h"], paths["json"], library, note)


def _put(path: Path, raw: bytes) -> None:
    with open(path, "wb") as out:
        out.write(raw)
        out.flush()
        os.fsync(out.fileno())


def find_compiler() -> str | None:
    """The C compiler: the setting `cc`, else cc, gcc or clang; None when there is none."""
    wanted = config.load().cc
    found = (shutil.which(name) for name in ([wanted] if wanted else ["cc", "gcc", "clang"]))
    return next((path for path in found if path), None)


def find_linker(target: Target) -> list[str]:
    """The command of a C compiler that links for a target; empty when there is none.

    For other architectures the setting `cc`, else GCC by the name that cross compilers have, else
    clang.
    """
    if target.arch == Target.native().arch:
        found = find_compiler()
        return [found] if found else []
    wanted = config.load().cc
    names = [wanted] if wanted else [f"{target.arch}-linux-gnu-gcc", f"{target.triple}-gcc"]
    for path in filter(None, map(shutil.which, names)):
        return [path]
    clang = None if wanted else shutil.which("clang")
    return [clang, f"--target={target.triple}"] if clang else []


def link_flags(compiled: Compiled, *, here: bool) -> list[str]:
    """What a linker needs beside the object file, on this machine (`here`) or on any."""
    flags = ["-lm"]
    if any(name.startswith("_ZGV") for name in compiled.externs):
        flags.insert(0, "-lmvec")
    if compiled.parallel:
        flags = [*(linked() if here else ["-lgomp"]), *flags]
    return flags


def _link(compiled: Compiled, target: Target, source: Path, out: Path) -> tuple[bool, str]:
    """Link a shared library; the result is (False, reason) if linking fails here."""
    linker, native = find_linker(target), target.arch == Target.native().arch
    if not linker:
        what = "" if native else f" that links for {target.arch} (METASCHED_CC names one)"
        return False, f"no C compiler{what} was found: there is no shared library, only the object"
    compiler, flags = linker[0], link_flags(compiled, here=native)
    command = [*linker, "-shared", "-o", str(out), str(source), *flags]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return False, f"{compiler} failed: {error}"
    if done.returncode:
        words = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        if "No space left" in done.stderr:
            raise OSError(28, os.strerror(28))
        return False, f"{compiler} could not link the shared library: {words[-1]}"
    return True, ""


def manifest(
    compiled: Compiled,
    target: Target,
    stem: str,
    workload_hash: str,
    files: dict[str, bytes],
    note: str,
) -> dict[str, Any]:
    """The description of exported files as JSON data."""
    return {
        "format": "metasched-kernel",
        "schema_version": MANIFEST_VERSION,
        "tool_version": __version__,
        "name": stem,
        "signature": signature_data(compiled.signature),
        "packed": [
            {"argument": a.name, "position": n, "shape": a.shape, "packed_shape": b.shape}
            for n, a, b in compiled.signature.packed
        ],
        "target": target.to_json(),
        "workload_hash": workload_hash,
        "parallel": compiled.parallel,
        "externs": list(compiled.externs),
        "link": link_flags(compiled, here=False),
        "note": note,
        "files": {file: hashlib.sha256(raw).hexdigest() for file, raw in files.items()},
    }


def signature_data(signature: Signature) -> dict[str, Any]:
    """A signature as JSON data; `signature_of` reads it."""
    params = [
        {"kind": "buffer" if isinstance(p, BufferArg) else "scalar", **asdict(p)}
        for p in signature.params
    ]
    return {
        "symbol": signature.symbol,
        "params": params,
        "symbols": list(signature.symbols),
        "messages": list(signature.messages),
        "weights": list(signature.weights),
        "record": signature.record,
        "pack": signature_data(signature.pack) if signature.pack else None,
    }


def signature_of(data: Any) -> Signature:
    """A signature from JSON data; KeyError, TypeError or ValueError when it is malformed."""
    params: list[BufferArg | ScalarArg] = []
    for item in data["params"]:
        if item["kind"] == "scalar":
            params.append(ScalarArg(str(item["name"]), str(DType(item["dtype"]))))
            continue
        shape, strides = (tuple(map(_extent, item[key])) for key in ("shape", "strides"))
        flags = (bool(item[key]) for key in ("compact", "read", "written"))
        params.append(
            BufferArg(str(item["name"]), str(DType(item["dtype"])), shape, strides, *flags)
        )
    symbols, messages = (tuple(map(str, data[key])) for key in ("symbols", "messages"))
    weights = tuple(map(int, data.get("weights", ())))  # absent in the first manifests
    pack = signature_of(data["pack"]) if weights else None
    record = int(data.get("record", 0))  # absent as well
    if len(params) + len(symbols) > MOST_ARGUMENTS:
        raise ValueError(f"more than {MOST_ARGUMENTS} arguments")
    return Signature(str(data["symbol"]), tuple(params), symbols, messages, weights, pack, record)


def _extent(data: Any) -> Extent:
    if isinstance(data, int | str):
        return data
    operator, left, right = data
    if operator not in ("+", "-", "*", "//", "%", "min", "max"):
        raise ValueError(f"{brief(operator)} is no operator of an extent")
    return (operator, _extent(left), _extent(right))


def header(
    signature: Signature, stem: str, target: Target | None = None, link: Sequence[str] = ()
) -> str:
    """The C header: one function on plain pointers, with the caller's obligations.

    `link`: what a program that holds the object file is linked with.
    """
    guard = f"METASCHED_{''.join(c if c.isalnum() else '_' for c in stem).upper()}_H"
    names = _c_names(signature)
    lines = [_describe(p, names) for p in signature.params]
    for position, _, _ in signature.packed:
        lines[position] += f", packed by {signature.symbol}_pack"
    lines += _symbol_lines(signature, names)
    codes = [
        f" *   {FIRST_ASSERT + n}: {message.replace('*/', '* /')}"
        for n, message in enumerate(signature.messages)
    ]
    return "\n".join([
        f"#ifndef {guard}",
        f"#define {guard}",
        "#include <stdint.h>",
        "#ifdef __cplusplus",
        'extern "C" {',
        "#endif",
        f"/* {signature.symbol}: compiled by metasched {__version__}.",
        *_machine_lines(target),
        *([f" * A program with {stem}.o is linked with {' '.join(link)}."] if link else []),
        " *",
        " * Parameters, in order:",
        *lines,
        " *",
        " * Arrays are aligned to their element size. A written array overlaps no other one,",
        " * and no two of its elements share memory.",
        " * The function keeps no state and may run in several threads at once.",
        " * It returns 0, or",
        " *   1: out of memory for a temporary array",
        *codes,
        " */",
        f"int32_t {signature.symbol}({_parameters(signature)});",
        "",
        "/* Calls it `times` times and stops at the first failure, whose code it returns. */",
        f"int32_t {signature.symbol}_repeat({_parameters(signature, ['int64_t times'])});",
        *_pack_lines(signature.pack),
        "#ifdef __cplusplus",
        "}",
        "#endif",
        "#endif",
        "",
    ])  # fmt: skip


def _machine_lines(target: Target | None) -> list[str]:
    """The header's lines on the machines that can run the code."""
    if target is None:
        return []
    features = ", ".join(sorted(target.features)) or "none"
    text = f"It runs on {target.triple} with the features {features}."
    return textwrap.wrap(text, 96, initial_indent=" * ", subsequent_indent=" * ")


def _symbol_lines(signature: Signature, names: dict[str, str]) -> list[str]:
    """The header's lines on the numbers behind the parameters: extents and strides."""
    extents = {name for p in signature.params if isinstance(p, BufferArg) for name in _in(p.shape)}
    kinds = {True: "the extent of that name", False: "the stride of that name, in elements"}
    return [f" *   {names[n]}: {kinds[n in extents]}" for n in signature.symbols]


def _in(extents: Sequence[Extent]) -> Iterator[str]:
    for extent in extents:
        if isinstance(extent, tuple):
            yield from _in(extent[1:])
        elif isinstance(extent, str):
            yield extent


def _pack_lines(pack: Signature | None) -> list[str]:
    """The declaration of the function that packs constant weights; empty without such weights."""
    if pack is None:
        return []
    names = _c_names(pack)
    return [
        "",
        f"/* {pack.symbol}: packs the constant weights for this very kernel, once and ahead of",
        " * time; it returns 0 or a failure code as above. Parameters, in order:",
        *[_describe(p, names) for p in pack.params],
        *_symbol_lines(pack, names),
        " */",
        f"int32_t {pack.symbol}({_parameters(pack)});",
    ]


def _describe(param: BufferArg | ScalarArg, names: dict[str, str]) -> str:
    if isinstance(param, ScalarArg):
        return f" *   {names[param.name]}: {param.dtype}"
    shape = "".join(f"[{_c_extent(e, names)}]" for e in param.shape) or " (one element)"
    does = "read and written" if param.read and param.written else (
        "written" if param.written else "read")  # fmt: skip
    strides = "row-major"
    if not param.compact:
        strides = f"strides {', '.join(_c_extent(e, names) for e in param.strides)} elements"
    kind = DType(param.dtype)
    bits = f" (its {kind.bits} bits)" if kind.is_float and kind.bits < 32 else ""
    return f" *   {names[param.name]}: {param.dtype}{bits} {shape}, {strides}, {does}"


def _parameters(signature: Signature, more: Sequence[str] = ()) -> str:
    out, names = [], _c_names(signature)
    for param in signature.params:
        kind = _C_TYPES.get(param.dtype, f"{param.dtype}_t")
        if isinstance(param, BufferArg):
            out.append(f"{'' if param.written else 'const '}{kind} *{names[param.name]}")
        else:
            out.append(f"{kind} {names[param.name]}")
    out += [f"int64_t {names[name]}" for name in signature.symbols]
    return ", ".join([*out, *more]) or "void"


def _c_names(signature: Signature) -> dict[str, str]:
    """The names of parameters and extents as C and C++ accept them, each another one."""
    taken, names = {*_C_WORDS, *_CPP_WORDS, *_HEADER_WORDS}, dict[str, str]()
    for name in (*(p.name for p in signature.params), *signature.symbols):
        plain = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in name)
        while plain in taken or plain[:1].isdigit():
            plain = f"_{plain}" if plain[:1].isdigit() else f"{plain}_"
        names[name] = plain
        taken.add(plain)
    return names


def _c_extent(extent: Extent, names: dict[str, str]) -> str:
    if not isinstance(extent, tuple):
        return names.get(extent, extent) if isinstance(extent, str) else str(extent)
    operator, left, right = extent
    return f"({_c_extent(left, names)} {operator} {_c_extent(right, names)})"
