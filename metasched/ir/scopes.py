"""Storage scopes: the names of the memories that may hold a buffer."""

from __future__ import annotations

from metasched.registry import Registry

SCOPES: Registry[str] = Registry("scope", str, entry_points=False)
for _name in (
    "global", "shared", "local", "warp", "wmma.matrix_a", "wmma.matrix_b", "wmma.accumulator",
    "texture", "amx.tmm", "m16n8k8.matrixA", "m16n8k8.matrixB", "m16n8k8.matrixC",
    "metal.simdgroup", "metal.cooperative_tensor", "trn.sbuf", "trn.psum",
):  # fmt: skip
    SCOPES.register(_name, _name)


def register_scope(name: str) -> None:
    """Register the name of a memory; registering a name twice is allowed."""
    SCOPES.register(name, name, override=True)


def is_scope(name: str) -> bool:
    """Whether a name is a scope, or a scope with a tag after a point (`shared.dyn`)."""
    return any(name == scope or name.startswith(f"{scope}.") for scope in SCOPES)
