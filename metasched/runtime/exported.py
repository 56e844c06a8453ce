"""Load exported kernels and call them on NumPy arrays, without a compiler."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from metasched.codegen.compile import Compiled
from metasched.codegen.signature import Signature
from metasched.errors import BuildError, ExportError, TargetError, brief, clipped, words
from metasched.files import read_json
from metasched.runtime.export import MANIFEST_VERSION, signature_of
from metasched.runtime.kernel import Kernel
from metasched.runtime.native import Native
from metasched.runtime.parallel import loader_finds_openmp
from metasched.target import Target


def load_exported(folder: str | Path, name: str | None = None) -> Kernel:
    """The kernel whose files `export` wrote to a folder.

    Args:
        folder: the folder, or the manifest (NAME.json) itself.
        name: which kernel, needed when the folder holds several.

    Raises ExportError: nothing there, a manifest that is damaged or of another version, a file
        that does not match the manifest, or a machine that lacks what the kernel was built for.
    """
    path = _manifest(Path(folder), name)
    data = _read(path)
    try:
        signature, target = signature_of(data["signature"]), Target.of(data["target"])
        files = dict(data["files"])
        externs = tuple(map(str, data["externs"]))
        symbol = str(data["name"])
    except (KeyError, TypeError, ValueError, TargetError) as error:
        reason = f"no field {error}" if isinstance(error, KeyError) else words(error)
        raise ExportError(f"{path}: damaged manifest: {reason}") from None
    lacking = target.here()
    if lacking is not None:
        raise ExportError(f"{path}: the kernel cannot run here: {clipped(lacking)}")
    native = _open(path, symbol, signature, files, externs)
    return Kernel(signature, native, target, workload_hash=str(data.get("workload_hash", "")))


def _manifest(place: Path, name: str | None) -> Path:
    if place.suffix in (".so", ".o", ".h") and place.with_suffix(".json").is_file():
        raise ExportError(f"{place}: name the manifest beside it, {place.with_suffix('.json')}")
    if place.is_file():
        return place
    if name is not None:
        found = [place / f"{name}.json"]
    else:
        found = [p for p in sorted(place.glob("*.json")) if b"metasched-kernel" in p.read_bytes()]
    if len(found) != 1:
        names = ", ".join(p.stem for p in found)
        raise ExportError(f"{place} holds several kernels, choose one of {names}" if found else
                          f"{place} holds no exported kernel")  # fmt: skip
    return found[0]


def _read(path: Path) -> dict[str, Any]:
    try:
        data = read_json(path.read_bytes())
    except OSError as error:
        raise ExportError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ExportError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(data, dict) or data.get("format") != "metasched-kernel":
        raise ExportError(f"{path}: not the manifest of a metasched kernel")
    version = data.get("schema_version")
    if not isinstance(version, int) or not 1 <= version <= MANIFEST_VERSION:
        raise ExportError(
            f"{path}: manifest version {brief(version)}; this metasched reads 1 to "
            f"{MANIFEST_VERSION} (it was written by metasched "
            f"{clipped(str(data.get('tool_version', 'unknown')))})"
        )
    return data


def _open(
    path: Path, name: str, signature: Signature, files: dict[str, str], externs: tuple[str, ...]
) -> Native:
    """Load the shared library if the loader finds what the library needs, else link the object into
    this process."""
    library, obj = (path.with_name(f"{name}.{suffix}") for suffix in ("so", "o"))
    try:
        if library.name in files:
            _verify(library, files)
            if "GOMP_parallel" not in externs or loader_finds_openmp():
                return Native.of_library(library, signature)
        raw = _verify(obj, files)
    except OSError as error:
        raise ExportError(f"{path}: {words(error)}") from None
    compiled = Compiled(raw, signature.symbol, signature, "", externs)
    try:
        return Native.of(compiled)
    except BuildError as error:
        raise ExportError(f"{obj}: {words(error)}") from None


def _verify(path: Path, files: dict[str, str]) -> bytes:
    """Read a file's bytes; ExportError if the bytes differ from those that the manifest
    describes."""
    raw = path.read_bytes()
    if hashlib.sha256(raw).hexdigest() != files.get(path.name):
        raise ExportError(f"{path} is not the file its manifest describes; export again")
    return raw
