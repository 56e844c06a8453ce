"""Random rows with memory of their own, for the fuzz: a queue, a stack or counts in a block."""

from __future__ import annotations

from space.random_kinds import Draw, Text


def own_memory(d: Draw) -> str:
    """Memory says which elements of the row's memory are stored; rows set them first, or not."""
    n, m, kind = d.size(2, 17), d.size(3, 40), d.pick("float32", "float64", "int32")
    t = Text.of(kind, X=(n, m), Y=(n, m))
    t.add(1, f"for n in range({n}):", '    with T.block("row"):')
    t.add(3, f"vn = T.axis.{d.pick('spatial', 'spatial', 'opaque')}({n}, n)")
    form, width = d.rng.randrange(3), d.rng.choice((1, 2, 5, 9))
    if form == 0:  # the largest of the last elements
        t.add(3, f'q = T.alloc_buffer(({m},), "int32")', "h = 0", "t = 0", f"for i in range({m}):")
        t.add(4, "while t > h and X[vn, q[T.max(t - 1, 0)]] <= X[vn, i]:", "    t -= 1")
        t.add(4, "q[t] = i", "t += 1", f"if q[h] <= i - {width}:", "    h += 1")
        t.add(4, "Y[vn, i] = X[vn, q[h]]")
    elif form == 1:  # for each element the last smaller one before it
        t.add(3, f'q = T.alloc_buffer(({m + 1},), "int32")', "t = 0", f"for i in range({m}):")
        t.add(4, "while t > 0 and X[vn, q[t]] >= X[vn, i]:", "    t -= 1")
        t.add(4, f"Y[vn, i] = {d.number(kind)}", "if t > 0:", "    Y[vn, i] = X[vn, q[t]]")
        t.add(4, "t += 1", "q[t] = i")
    else:  # counts, some of which may be set first
        t.add(3, f'c = T.alloc_buffer(({width},), "int32")')
        t.add(3, f"for k in range({width}):", "    c[k] = 0", f"for i in range({m}):")
        t.add(4, f"c[T.cast(T.max(T.min(X[vn, i], 9), 0), 'int32') % {width}] += 1")
        count = f"T.cast(c[i % {width}], '{kind}')"
        t.add(3, f"for i in range({m}):", f"    Y[vn, i] = X[vn, i] * {count}")
    return str(t)
