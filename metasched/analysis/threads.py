"""Storage scopes and thread tags: over which threads memory of a scope is shared."""

from __future__ import annotations

from collections.abc import Iterable

from metasched.ir.stmt import For

_SCOPE_RANK = {"global": 0, "shared": 1, "warp": 2, "local": 3}


def scope_rank(storage_scope: str) -> int:
    """How private a storage scope is: global 0, shared 1, warp 2, local and beyond 3."""
    return _SCOPE_RANK.get(storage_scope.split(".")[0], 3)


def thread_rank(tag: str) -> int:
    """How fine a thread tag is: blockIdx 0, threadIdx and vthread 1, cluster tags 2."""
    if tag.startswith("blockIdx"):
        return 0
    return 1 if tag.startswith(("threadIdx", "vthread")) else 2


def thread_loops(loops: Iterable[For], storage_scope: str) -> list[For]:
    """The thread-bound loops over which memory of this scope is shared."""
    bound = [loop for loop in loops if loop.thread is not None]
    if not bound:
        return bound
    rank = scope_rank(storage_scope)
    if storage_scope.startswith("warp"):
        return [loop for loop in bound if loop.thread == "threadIdx.x"]
    return [loop for loop in bound if loop.thread and rank <= thread_rank(loop.thread)]
