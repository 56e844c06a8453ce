"""Random programs of windows that overlap, for the fuzz of the space: written as loops that scatter
(`Y[i * s + k] += X[i] * W[k]`), or as loops that gather, with a condition that keeps the windows
inside.

Transposed convolutions, gradients with respect to inputs, products of polynomials, overlap-add and
col2im are of this kind, with steps, gaps, padding, channels, flat images and kernels that run
backwards.
"""

from __future__ import annotations

from dataclasses import dataclass

from space.random_kinds import INTS, REALS, Draw, Text

SIDES = "ij"
TAPS = "pq"


@dataclass(frozen=True)
class Window:
    """One dimension: `taps` elements, `gap` apart, at each `step` of `count` positions, less `cut`
    elements at both ends."""

    count: int
    taps: int
    step: int
    gap: int
    cut: int
    backwards: bool

    @property
    def whole(self) -> int:
        return (self.count - 1) * self.step + (self.taps - 1) * self.gap + 1

    @property
    def size(self) -> int:
        """The elements that a condition leaves, or the whole."""
        return self.whole - 2 * self.cut

    def place(self, at: str, tap: str) -> str:
        """The element of the tap of a window, with spelled factors left out where they are one."""
        if self.backwards:
            tap = f"({self.taps - 1} - {tap})"
        at = at if self.step == 1 else f"{at} * {self.step}"
        tap = tap if self.gap == 1 else f"{tap} * {self.gap}"
        return f"{at} + {tap}" + (f" - {self.cut}" if self.cut else "")

    def inside(self, place: str) -> str:
        return f"{place} >= 0 and {place} < {self.size}" if self.cut else ""


def _window(d: Draw, most: int) -> Window:
    taps, step, gap = (
        d.rng.choice((1, 2, 3, 3, 4, 5)),
        d.rng.choice((1, 1, 2, 3)),
        d.rng.choice((1, 1, 1, 2)),
    )
    found = Window(d.size(2, most), taps, step, gap, 0, d.often(0.15))
    cut = d.rng.choice((0, 0, 1, 1, 2)) if found.whole > 5 else 0
    return Window(found.count, taps, step, gap, cut, found.backwards)


def scattered_windows(d: Draw) -> str:
    """Each input adds its products with the kernel to the results of its window."""
    dims = d.rng.choice((1, 1, 2))
    windows = [_window(d, 33 if dims == 1 else 9) for _ in range(dims)]
    dtype = d.pick(*REALS, *INTS)
    channels = d.rng.choice(((), (), ("c",), ("d",), ("c", "d"), ("n", "c", "d")))
    sizes = {"n": 2, "c": d.size(1, 17), "d": d.size(1, 5)}
    loops = {name: sizes[name] for name in channels}
    at, taps = SIDES[:dims], TAPS[:dims]
    loops |= {name: w.count for name, w in zip(at, windows, strict=True)}
    loops |= {name: w.taps for name, w in zip(taps, windows, strict=True)}
    names = list(loops)
    if d.often(0.4):
        d.rng.shuffle(names)
    places = [w.place(i, p) for w, i, p in zip(windows, at, taps, strict=True)]
    arrays = {
        "Y": [c for c in channels if c in "nc"], "X": [c for c in channels if c in "nd"],
        "W": [c for c in channels if c in "cd"],
    }  # fmt: skip
    shapes = {"Y": [w.size for w in windows], "X": [w.count for w in windows],
              "W": [w.taps for w in windows]}  # fmt: skip
    indices = {"Y": places, "X": [*at], "W": [*taps]}
    last = d.often(0.3)  # channels last

    def joined(buffer: str, outer: list, inner: list) -> list:  # type: ignore[type-arg]
        return [*inner, *outer] if last else [*outer, *inner]

    full = {b: joined(b, [sizes[c] for c in arrays[b]], shapes[b]) for b in arrays}
    index = {b: ", ".join(joined(b, arrays[b], indices[b])) for b in arrays}
    kernel = d.rng.random() < 0.85  # overlap-add without
    if not kernel:  # X holds the whole windows
        full["X"] = joined("X", [sizes[c] for c in arrays["X"]], shapes["X"] + shapes["W"])
        index["X"] = ", ".join(joined("X", arrays["X"], indices["X"] + indices["W"]))
    t = Text.of(dtype, **{b: tuple(full[b]) for b in arrays if b != "W" or kernel})
    value = f"X[{index['X']}]" + (f" * W[{index['W']}]" if kernel else "")
    depth = 1
    if d.often(0.6):
        axes = "abcde"[: len(full["Y"])]
        head = f"for {', '.join(axes)} in T.grid({', '.join(map(str, full['Y']))}):"
        t.add(1, head, f"    Y[{', '.join(axes)}] = {d.number(dtype)}")
    t.add(1, f"for {', '.join(names)} in T.grid({', '.join(str(loops[n]) for n in names)}):")
    guard = " and ".join(g for w, p in zip(windows, places, strict=True) if (g := w.inside(p)))
    if guard:
        depth += 1
        t.add(2, f"if {guard}:")
    y = f"Y[{index['Y']}]"
    same = f"{y} += {value}"
    update = d.pick(same, same, f"{y} = {y} + {value}", f"{y} = T.max({y}, {value})",
                    f"{y} -= {value}")  # fmt: skip
    t.add(depth + 1, update)
    return str(t)


def gathered_windows(d: Draw) -> str:
    """Each result adds the products of its window, whose elements a condition keeps inside: by
    `if`, by T.if_then_else, or under both."""
    dims = d.rng.choice((1, 1, 2))
    dtype = d.pick(*REALS, *INTS)
    windows = [_window(d, 33 if dims == 1 else 9) for _ in range(dims)]
    at, taps = SIDES[:dims], TAPS[:dims]
    zero = f"T.{dtype}(0)"
    transposed = d.often(0.4)  # the results are the elements, the inputs the positions
    places = [w.place(i, p) for w, i, p in zip(windows, at, taps, strict=True)]
    guards = [g for w, p in zip(windows, places, strict=True) if (g := w.inside(p))]
    sizes, given = [w.count for w in windows], [w.size for w in windows]
    if transposed:
        sizes, given = given, sizes
        shifted = [
            f"({i} + {w.cut} - {p} * {w.gap})" for w, i, p in zip(windows, at, taps, strict=True)
        ]
        places = [f"{s} // {w.step}" for w, s in zip(windows, shifted, strict=True)]
        guards = [f"{s} >= 0 and {s} < {(w.count - 1) * w.step + 1}"
                  + (f" and {s} % {w.step} == 0" if w.step > 1 else "")
                  for w, s in zip(windows, shifted, strict=True)]  # fmt: skip
    t = Text.of(dtype, X=tuple(given), W=tuple(w.taps for w in windows), Y=tuple(sizes))
    x, y, w = (f"{b}[{', '.join(i)}]" for b, i in (("X", places), ("Y", [*at]), ("W", [*taps])))
    grid = ", ".join(f"{s}" for s in sizes)
    t.add(1, f"for {', '.join(at)} in T.grid({grid}):", f"    {y} = {zero}")
    t.add(2, f"for {', '.join(taps)} in T.grid({', '.join(str(one.taps) for one in windows)}):")
    guard = " and ".join(guards)
    if not guard:
        t.add(3, f"{y} += {x} * {w}")
    elif d.often(0.5):
        t.add(3, f"if {guard}:", f"    {y} += {x} * {w}")
    else:
        other = d.pick(zero, zero, d.number(dtype))
        t.add(3, f"{y} += T.if_then_else({guard}, {x}, {other}) * {w}")
    return str(t)
