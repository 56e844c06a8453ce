"""Random programs of blocks in odd loops, between and inside of statements in plain loops.

The loops of a block are triangles, bands or shifted; its reduce iterators may begin behind the
minimum of their domain, so that some results never run the init, and several of its instances may
set one element.
"""

from __future__ import annotations

from space.plain_loops import Plain
from space.random_kinds import Draw


class Mixed(Plain):
    """A program in the making; see `Plain`."""

    def statement(self, depth: int) -> None:
        if self.left > 0 and len(self.loops) < 3 and self.d.often(0.5):
            self.left -= 1
            self.nest(depth)
        else:
            super().statement(depth)

    def ends(self) -> tuple[str, int, int]:
        """The ends of a loop, and the smallest and largest value of its variable."""
        size, roll = self.d.rng.choice(self.sizes), self.d.rng.random()
        inside = [(v, low, high) for v, low, high in self.loops if low >= 0]
        if inside and roll < 0.4:
            var, _, high = self.d.rng.choice(inside)
            found = [(var, 0, high - 1), (f"{var} + 1", 0, high),
                     (f"T.max({var} - 2, 0), T.min({var} + 3, {size})", 0, size - 1)]  # fmt: skip
            if high < size:
                found += [(f"{var}, {size}", 0, size - 1), (f"{var} + 1, {size}", 1, size - 1)]
            return self.d.rng.choice(found)
        if roll < 0.55 and size > 1:
            return f"1, {size}", 1, size - 1
        if roll < 0.62:
            return f"{size - 1}, -1, -1", 0, size - 1
        return str(size), 0, size - 1

    def nest(self, depth: int) -> None:
        """Loops around a block, which reduces or stores."""
        d, around = self.d, len(self.loops)
        for _ in range(d.rng.choice((1, 2, 2, 3))):
            var, (ends, low, high) = self.fresh("i"), self.ends()
            self.t.add(depth, f"for {var} in range({ends}):")
            self.loops.append((var, low, high))
            depth += 1
        self.t.add(depth, f'with T.block("{self.fresh("b")}"):')
        outer, own = self.loops[:around], self.loops[around:]
        reduced = d.rng.randint(1, 1 << len(own)) if d.often(0.5) else 0
        spatial, iters = [], []
        for n, (var, low, high) in enumerate(own):
            kind = "reduce" if reduced >> n & 1 else "spatial"
            by = d.rng.choice((0, 0, 0, 1, 2))
            first = d.rng.choice((0, low, low)) + by
            value = f"{var} + {by}" if by else var
            domain = f"({min(first, high + by)}, {max(high, low) + by + 1})"
            self.t.add(depth + 1, f"v{var} = T.axis.{kind}({domain}, {value})")
            iters.append((f"v{var}", low + by, high + by))
            if kind == "spatial":
                spatial.append(iters[-1])
        if reduced:
            self.reduction(depth + 1, spatial, iters)
        else:
            self.loops = iters + (outer if d.often(0.5) else [])
            self.store(depth + 1)
        self.loops = outer

    def reduction(
        self, depth: int, spatial: list[tuple[str, int, int]], iters: list[tuple[str, int, int]]
    ) -> None:
        """An init and an update of an element that the spatial iterators choose."""
        d = self.d
        exact = [b for b, (_, kind) in self.buffers.items() if "float16" not in kind]
        name = d.pick(*(exact or self.buffers))
        kind, before = self.buffers[name][1], self.buffers
        self.loops = spatial
        target = self.element(name)
        if d.often(0.8):
            self.t.add(depth, "with T.init():", f"    {target} = {d.number(kind)}")
        self.loops = iters
        self.buffers = {b: of for b, of in before.items() if b != name}
        self.t.add(depth, self.update(target, kind))
        self.buffers = before


def mixed_blocks(d: Draw) -> str:
    """Blocks in odd loops, and statements in plain loops."""
    p = Mixed(d)
    for _ in range(d.rng.randint(1, 3)):
        p.left = max(p.left, 2)
        p.statement(1)
    return str(p.t)
