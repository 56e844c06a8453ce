"""The foreign symbols of an object file, read from its symbol table (64-bit little-endian ELF)."""

from __future__ import annotations

import struct

from metasched.errors import BuildError

_SYMBOL_TABLE = 2


def undefined_symbols(obj: bytes) -> tuple[str, ...]:
    """Names that the object uses but does not define, sorted.

    Raises BuildError for files that are not 64-bit ELF objects.
    """
    if obj[:6] != b"\x7fELF\x02\x01":
        raise BuildError("the code generator gave no 64-bit ELF object")
    (offset,) = struct.unpack_from("<Q", obj, 0x28)
    size, count = struct.unpack_from("<HH", obj, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", obj, offset + i * size) for i in range(count)]
    names: set[str] = set()
    for section in sections:
        if section[1] != _SYMBOL_TABLE:
            continue
        start, length, strings = section[4], section[5], sections[section[6]]
        text = obj[strings[4] : strings[4] + strings[5]]
        for position in range(start, start + length, 24):
            name, _, _, index = struct.unpack_from("<IBBH", obj, position)
            if index == 0 and name:
                names.add(text[name : text.index(b"\0", name)].decode())
    names.discard("_GLOBAL_OFFSET_TABLE_")
    return tuple(sorted(names))
