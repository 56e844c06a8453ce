"""Which loop becomes vectors: the one along which memory is accessed element by element."""

from __future__ import annotations

from metasched.analysis.access import Access, accesses, strides
from metasched.analysis.affine import linear
from metasched.analysis.scope import Child
from metasched.ir.expr import Var, as_int
from metasched.ir.stmt import Block, For, IterVar
from metasched.ir.visit import free_vars


def iter_stride(access: Access, var: Var) -> int | None:
    """Elements from one value of a block iterator to the next; None when that is not constant."""
    total = 0
    for index, step in zip(access.indices, access.buffer.row_major_strides(), strict=True):
        if var not in free_vars(index):
            continue
        form, by = linear(index), as_int(step)
        if by is None or any(var in free_vars(a) for a in form.terms if a is not var):
            return None
        total += form.terms.get(var, 0) * by
    return total


def vector_iter(block: Block) -> IterVar | None:
    """The spatial iterator along which the block's stores are contiguous, None when none is.

    Among several (a buffer with unit extents) the one with most contiguous loads, then the last.
    """
    best: IterVar | None = None
    best_score = -1
    for v in block.iter_vars:
        if not v.is_spatial or as_int(v.dom.extent) == 1:
            continue
        moves = [(a.is_write, iter_stride(a, v.var)) for a in accesses(block)]
        if not all(s == 1 for write, s in moves if write):
            continue
        score = sum(s in (0, 1) for write, s in moves if not write)
        if score >= best_score:
            best, best_score = v, score
    return best


def has_vectors(block: Block) -> bool:
    """Whether some spatial iterator moves every store by one element, every load by one or none."""
    for v in block.iter_vars:
        if v.is_spatial and as_int(v.dom.extent) != 1:
            moves = [(a.is_write, iter_stride(a, v.var)) for a in accesses(block)]
            if all(s == 1 or (s == 0 and not w) for w, s in moves):
                return True
    return False


def contiguous(child: Child, loop: For) -> bool:
    """Whether along a loop every store moves by one element and every load by one or none."""
    moves = [(a.is_write, s) for a, s in strides(child, loop)]
    return any(w for w, _ in moves) and all(s == 1 or (s == 0 and not w) for w, s in moves)
