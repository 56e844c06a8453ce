"""Families of random programs by the shape of their loops and accesses, of extents up to `most`.

Blocks between plain loops, small products, loops whose length memory or another loop gives, and
buffers in transposed, reversed or strided order.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

TYPES = ["int8", "int16", "int32", "int32", "float16", "float32", "float64", "bool", "uint8"]


@dataclass
class Sketch:
    """A program under construction: its parameters, its lines, the type of each buffer."""

    rng: random.Random
    params: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    types: dict[str, str] = field(default_factory=dict)
    count: int = 0

    def param(self, name: str, shape: tuple[int, ...], dtype: str, more: str = "") -> None:
        self.types[name] = dtype
        self.params.append(f'{name}: T.Buffer({shape}, "{dtype}"{more})')

    def temp(self, name: str, shape: tuple[int, ...], dtype: str, more: str = "") -> None:
        self.types[name] = dtype
        self.put(1, f'{name} = T.alloc_buffer({shape}, "{dtype}"{more})')

    def put(self, depth: int, *lines: str) -> None:
        self.lines += ["    " * depth + line for line in lines]

    def pick(self, *items: str) -> str:
        return self.rng.choice(items)

    def often(self, share: float) -> bool:
        return self.rng.random() < share

    def nest(
        self, axes: dict[str, int | str], kinds: str, body: list[str], where: str = ""
    ) -> None:
        """Loops in any order around one block, or around the statements alone.

        The body names an iterator by `v` and its axis; an init stands first in it.
        """
        block = self.often(0.6) or any("T.init" in line for line in body)
        order = self.rng.sample(list(axes), len(axes)) if self.often(0.25) else list(axes)
        if any(isinstance(extent, str) for extent in axes.values()):
            order = list(axes)  # one loop gives the length of another
        depth = 1
        for a in order:
            self.put(depth, f"for {a} in range({axes[a]}):")
            depth += 1
        if not block:
            for line in [f"if {where}:", *(f"    {x}" for x in body)] if where else body:
                for a in axes:
                    line = line.replace(f"v{a}", a)
                self.put(depth, line)
            return
        self.count += 1
        self.put(depth, f'with T.block("b{self.count}"):')
        if where:
            text = where
            for a in axes:
                text = text.replace(f"v{a}", a)
            self.put(depth + 1, f"T.where({text})")
        words = {"S": "spatial", "R": "reduce", "O": "opaque"}
        for (a, extent), kind in zip(axes.items(), kinds, strict=True):
            size = extent if isinstance(extent, int) else max(axes.values(), key=_known)
            self.put(depth + 1, f"v{a} = T.axis.{words[kind]}({size}, {a})")
        self.put(depth + 1, *body)

    def start(self, name: str) -> str:
        kind = self.types[name]
        return "T.bool(False)" if kind == "bool" else f"T.{kind}(0)"

    def load(self, place: str, dtype: str) -> str:
        """An element of a buffer as another type; floats and integers stay small."""
        kind = self.types[place.split("[")[0]]
        if kind == dtype:
            return place
        if dtype == "bool":
            return f"{place} > T.{kind}(0)"
        if "float" in kind and "int" in dtype:
            return f'T.cast(T.max(T.min({place}, T.{kind}(100)), T.{kind}(0)), "{dtype}")'
        if "float" in dtype and "int" in kind:
            place = f"{place} % T.{kind}(4)"  # sums are exact in any order
        return f'T.cast({place}, "{dtype}")'

    def join(self, a: str, b: str, dtype: str) -> str:
        if dtype == "bool":
            return self.pick(f"({a}) and ({b})", f"({a}) or ({b})", f"({a}) != ({b})")
        forms = [f"{a} + {b}", f"{a} - ({b})", f"T.max({a}, {b})", f"T.min({a}, {b})"]
        return self.pick(*forms, *([f"({a}) ^ ({b})"] if "int" in dtype else []))

    def text(self) -> str:
        return "\n".join([f"@T.prim_func\ndef f({', '.join(self.params)}):", *self.lines]) + "\n"


def _known(extent: int | str) -> int:
    return extent if isinstance(extent, int) else 0


# -- blocks between plain loops --------------------------------------------------------------------


def interleaved(rng: random.Random, most: int = 6) -> str:
    """Blocks and plain loops over two results, with `else` on indices, in several types."""
    s, n, m = Sketch(rng), rng.randint(1, most), rng.randint(1, most)
    kinds = rng.sample(TYPES, rng.randint(1, 3))
    for name, shape in {"A": (n, m), "B": (n, m), "C": (n, m), "D": (n,)}.items():
        s.param(name, shape, rng.choice(kinds))
    s.temp("U", (n, m), rng.choice(kinds))
    s.nest({"i": n, "j": m}, "SS", [f"U[vi, vj] = {s.load('A[vi, vj]', s.types['U'])}"])
    for _ in range(rng.randint(2, 4)):
        rng.choice([_chosen, _chosen, _summed, _stepped, _both])(s, n, m)
    return s.text()


def _value(s: Sketch, out: str, n: int, m: int) -> str:
    kind, source = s.types[out], s.pick("A", "B", "U", "C")
    at = s.pick(
        "vi, vj", "vi, vj", f"{n - 1} - vi, vj", f"vi, {m - 1} - vj", "vi, 0", "vi // 2, vj"
    )
    if source == out:
        at = "vi, vj"
    a = s.load(f"{source}[{at}]", kind)
    if s.often(0.5):
        other = s.pick(*[b for b in "ABU" if b != out], *(["D"] if out != "D" else []))
        a = s.join(a, s.load(f"{other}[{'vi' if other == 'D' else 'vi, vj'}]", kind), kind)
    return a


def _test(s: Sketch, n: int, m: int) -> str:
    k = s.rng.randint(0, max(n, m))
    flag = "B[vi, vj]" if s.types["B"] == "bool" else f"B[vi, vj] > T.{s.types['B']}(0)"
    return s.pick(f"vi < {k}", f"vj >= {k}", f"vi % 2 == {k % 2}", "vi == vj", f"vi + vj < {k}",
                  f"vj * 2 + 1 < {m}", "vj <= vi", flag)  # fmt: skip


def _chosen(s: Sketch, n: int, m: int) -> None:
    out = s.pick("C", "C", "U")
    first = f"{out}[vi, vj] = {_value(s, out, n, m)}"
    body = [f"if {_test(s, n, m)}:", f"    {first}"]
    if s.often(0.6):
        body += ["else:", f"    {out}[vi, vj] = {_value(s, out, n, m)}"]
    s.nest({"i": n, "j": m}, "SS", body if s.often(0.7) else [first])


def _summed(s: Sketch, n: int, m: int) -> None:
    """A row in D, with an init, by a guarded update or beside a statement in the outer loop."""
    kind = s.types["D"]
    new = s.load(f"{s.pick('A', 'B', 'C', 'U')}[vi, vj]", kind)
    update, start = f"D[vi] = {s.join('D[vi]', new, kind)}", f"D[vi] = {s.start('D')}"
    form = s.rng.randrange(4)
    if form == 0:
        s.nest({"i": n, "j": m}, "SR", ["with T.init():", f"    {start}", update])
    elif form == 1:
        s.nest({"i": n, "j": m}, "SR", [f"if {_test(s, n, m)}:", f"    {update}"])
    else:
        own = update.replace("vi", "i").replace("vj", "j")
        s.put(1, f"for i in range({n}):", f"    {start.replace('vi', 'i')}")
        s.put(2, f"for j in range({m}):", f"    {own}")
        if form == 3:
            s.put(2, f"C[i, {s.rng.randrange(m)}] = {s.load('D[i]', s.types['C'])}")


def _stepped(s: Sketch, n: int, m: int) -> None:
    """Each row from the row before it, in one of two halves of the columns."""
    kind, cut = s.types["C"], s.rng.randint(0, m)
    value = s.join("C[vi - 1, vj]", s.load("U[vi, vj]", kind), kind)
    s.put(1, f"for i in range(1, {n}):", f"    for j in range({m}):", f"        if j < {cut}:")
    s.put(4, f"C[i, j] = {value.replace('vi', 'i').replace('vj', 'j')}")
    if s.often(0.5):
        s.put(3, "else:", f"    C[i, j] = {s.load('A[i - 1, j]', kind)}")


def _both(s: Sketch, n: int, m: int) -> None:
    """One nest that writes both results."""
    first = f"C[vi, vj] = {_value(s, 'C', n, m)}"
    kind = s.types["D"]
    second = f"D[vi] = {s.join('D[vi]', s.load('A[vi, vj]', kind), kind)}"
    body = s.rng.sample([first, second], 2)
    if s.often(0.3):
        body = [f"if {_test(s, n, m)}:", *[f"    {line}" for line in body]]
    s.nest({"i": n, "j": m}, s.pick("SR", "SO"), body)


# -- small products --------------------------------------------------------------------------------


def matrices(rng: random.Random, most: int = 5) -> str:
    """Products of small matrices: guards, triangles, transposes, epilogues, a shared temporary."""
    s, n = Sketch(rng), rng.randint(1, most)
    narrow, wide = rng.choice([("int8", "int32"), ("int32", "int32"), ("int64", "int64"),
                               ("float32", "float32"), ("float64", "float64"),
                               ("float16", "float32"), ("uint8", "int32")])  # fmt: skip
    for name in "AB":
        s.param(name, (n, n), narrow)
    for name in "CD":
        s.param(name, (n, n), wide)
    s.param("V", (n,), wide)
    s.temp("U", (n, n), wide)
    if s.often(0.4):
        s.nest({"i": n, "j": n}, "SS", [f"U[vi, vj] = {s.load('A[vj, vi]', wide)}"])
    else:
        _product(s, "U", "A", "B", n)
    left, right = rng.choice([("U", "B"), ("A", "U"), ("U", "U"), ("C", "U"), ("U", "A")])
    _product(s, "D", left, right, n)
    if s.often(0.5):
        _product(s, s.pick("C", "V"), "U", s.pick("D", "B", "V"), n)
    if s.often(0.6):
        _epilogue(s, n)
    return s.text()


def _product(s: Sketch, out: str, left: str, right: str, n: int) -> None:
    kind = s.types[out]
    at = "vi" if out == "V" else s.pick("vi, vj", "vi, vj", "vj, vi")
    a = s.load(f"{left}[{s.pick('vi, vk', 'vk, vi')}]", kind)
    b = s.load(f"{right}[{'vk' if right == 'V' else s.pick('vk, vj', 'vj, vk')}]", kind)
    if out == "V":
        b = b.replace("vj", "vi")
    if right == out == "V":
        b = f"T.{kind}(1)"
    value = (
        f"{a} * {b}"
        if s.often(0.8)
        else f"{a} * {b} * {s.load(s.pick('A', 'B') + '[vi, vk]', kind)}"
    )
    guard = s.pick(
        "", "", "", "vk <= vi", "vk != vi", f"vk < {max(1, n - 1)}", "(vi + vk) % 2 == 0"
    )
    if guard and s.often(0.4):
        value, guard = f"T.{s.pick('Select', 'if_then_else')}({guard}, {value}, T.{kind}(0))", ""
    axes: dict[str, int | str] = {"i": n} if out == "V" else {"i": n, "j": n}
    ends = s.pick(str(n), str(n), str(n), "i + 1", "i", f"i, {n}")
    if out == "U" and ends in ("i", f"i, {n}"):
        ends = "i + 1"  # each element is set
    axes["k"] = ends if not ends.isdecimal() else n
    update = [f"{out}[{at}] = {out}[{at}] {s.pick('+', '+', '-')} {value}"]
    if guard:
        update = [f"if {guard}:", f"    {update[0]}"]
    kinds = "S" * (len(axes) - 1) + "R"
    init = [f"{out}[{at}] = T.{kind}(0)"]
    if s.often(0.5) and (out != "U" or ends == str(n)):
        s.nest(axes, kinds, ["with T.init():", f"    {init[0]}", *update])
        return
    if out == "U" or s.often(0.5):
        s.nest({a: n for a in axes if a != "k"}, kinds[:-1], init)
    s.nest(axes, kinds, update)


def _epilogue(s: Sketch, n: int) -> None:
    kind = s.types["D"]
    a = s.pick("D[vi, vj]", "D[vi, vj]", "U[vi, vj]", "U[vj, vi]")
    value = s.pick(
        f"T.max({a}, T.{kind}(0))",
        f"{a} + V[vj]",
        f"{a} * V[vi] + D[vi, vj]",
        f"T.Select(vi < vj, {a}, C[vi, vj])",
        f"{a} - C[vi, vj] * T.{kind}(2)",
    )
    out = s.pick("C", "D")
    where = s.pick("", "", "vj <= vi")
    s.nest({"i": n, "j": n}, "SS", [f"{out}[vi, vj] = {value}"], where)


# -- loops whose length memory or another loop gives -----------------------------------------------


def lengths(rng: random.Random, most: int = 6) -> str:
    """Ragged rows and segments: memory, or an outer loop, says how long a loop is."""
    s, n, m = Sketch(rng), rng.randint(1, most), rng.randint(5, most + 1)
    kind = rng.choice(["int32", "int32", "int64", "float32", "float64", "int8"])
    s.param("A", (n, m), kind)
    s.param("L", (n + 1,), "uint8")  # random data hold 0 to 4
    s.param("P", (m,), "uint8")
    s.param("C", (n, m), kind)
    s.param("D", (n,), kind)
    for _ in range(rng.randint(1, 3)):
        rng.choice([_ragged_sum, _ragged_sum, _ragged_rows, _ragged_rows, _segments])(s, n, m)
    return s.text()


def _end(s: Sketch, m: int) -> str:
    """The end of a loop in row i, at most `m`."""
    row = 'T.cast(L[i], "int32")'
    return s.pick(row, row, f"T.min({row} * 2, {m})", f"{m} - {row}", "T.min(i + 1, 5)",
                  f"T.max({row}, 1)", "T.min(i // 2 + 1, 5)", f"{m} - i % 3",
                  f"{row} + 1")  # fmt: skip


def _inner(s: Sketch, m: int) -> str:
    """The inner loop over columns j of row i: to an end, from one, or with a test inside."""
    end = _end(s, m)
    form = s.rng.randrange(4)
    if form == 0:
        s.put(2, f"for j in range({end}, {m}):")
    elif form == 1:
        s.put(2, f"for j in range({m}):", f"    if j < {end}:")
        return "                "
    else:
        s.put(2, f"for j in range({end}):")
    return "            "


def _element(s: Sketch) -> str:
    return s.pick("A[i, j]", "A[i, j]", "A[i, P[j]]", "C[i, j] + A[i, j]", "A[i, 0]")


def _ragged_sum(s: Sketch, n: int, m: int) -> None:
    kind = s.types["D"]
    s.put(1, f"for i in range({n}):")
    if s.often(0.6):
        s.put(2, f"D[i] = T.{kind}(0)")
    pad = _inner(s, m)
    value = s.pick(
        f"D[i] + {_element(s)}", f"T.max(D[i], {_element(s)})", f"D[i] - ({_element(s)})"
    )
    _maybe_block(s, pad, f"D[i] = {value}")
    if s.often(0.3):
        s.put(2, "D[i] = D[i] + A[i, 1]")


def _maybe_block(s: Sketch, pad: str, line: str) -> None:
    if s.often(0.4):
        s.count += 1
        s.lines.append(f'{pad}with T.block("b{s.count}"):')
        pad += "    "
    s.lines.append(pad + line)


def _ragged_rows(s: Sketch, n: int, m: int) -> None:
    s.put(1, f"for i in range({n}):")
    if s.often(0.3):
        s.put(2, f"for j in range({m}):", f"    C[i, j] = {s.start('C')}")
    pad = _inner(s, m)
    target = s.pick("C[i, j]", "C[i, j]", "C[i, P[j]]")
    value = s.pick(f"{_element(s)} + D[i]", f"{target} + {_element(s)}", _element(s))
    _maybe_block(s, pad, f"{target} = {value}")


def _segments(s: Sketch, n: int, m: int) -> None:
    """Rows of a flat list, which begin where L says; one may be empty, or end before it begins."""
    kind = s.types["D"]
    s.put(1, f"for i in range({n}):")
    total = s.often(0.5)
    if total:
        s.put(2, f"t = T.{kind}(0)")
    s.put(2, 'for j in range(T.cast(L[i], "int32"), T.cast(L[i + 1], "int32")):')
    s.put(
        3, f"{'t' if total else 'D[i]'} += {s.pick('A[i, j]', 'A[i, P[j]]', 'A[0, j] * A[i, j]')}"
    )
    if total:
        s.put(2, "D[i] = t")


# -- orders of access ------------------------------------------------------------------------------


def transposed(rng: random.Random, most: int = 5) -> str:
    """Buffers in transposed, reversed or strided order, views with strides, permutations, gaps."""
    s, n, m = Sketch(rng), rng.randint(1, most), rng.randint(1, most)
    kind = rng.choice(["int32", "int32", "int64", "float32", "float64", "int8", "uint8", "float16"])
    strides = f", strides=[{m + rng.randint(0, 3)}, 1]"
    s.param("A", (n, m), kind)
    s.param("B", (m, n), kind)
    s.param("W", (3 * m + 6,), kind)
    s.param("C", (n, m), kind)
    s.param("D", (m, n), kind)
    s.temp("U", (n, m), kind, rng.choice(["", strides, f", strides=[1, {n}]"]))
    s.temp("X", (m, n), kind)
    _moved(s, "U", n, m, whole=True)
    _moved(s, "X", n, m, whole=True)
    for _ in range(rng.randint(1, 3)):
        form = rng.randrange(4)
        if form == 0:
            _dilated(s, m)
        elif form == 1:
            _view(s, n, m)
        else:
            _moved(s, s.pick("C", "D", "U", "X"), n, m, whole=False)
    return s.text()


def _place(s: Sketch, name: str, n: int, m: int) -> str:
    """An element for iterators i of `n` and j of `m`, no two of them the same."""
    i = s.pick("vi", "vi", f"{n - 1} - vi", f"(vi + {s.rng.randint(1, 3)}) % {n}")
    j = s.pick("vj", "vj", f"{m - 1} - vj", f"(vj + {s.rng.randint(1, 3)}) % {m}")
    if s.often(0.1):  # the same elements in another order of rows and columns
        rows, columns = (n, m) if name in "ACU" else (m, n)
        flat = f"(vi * {m} + vj)" if s.often(0.5) else f"(vj * {n} + vi)"
        return f"{name}[{flat} // {columns}, {flat} % {columns}]" if rows * columns else ""
    return f"{name}[{i}, {j}]" if name in "ACU" else f"{name}[{j}, {i}]"


def _moved(s: Sketch, out: str, n: int, m: int, *, whole: bool) -> None:
    known = "AB" if whole else "ABUX"
    a, b = (s.pick(*[x for x in known if x != out]) for _ in range(2))
    value = _place(s, a, n, m)
    if s.often(0.4):
        value = s.join(value, _place(s, b, n, m), s.types[out])
    target = _place(s, out, n, m)
    if not whole and s.often(0.3):
        value = f"{target} + {value}"
    guard = "" if whole else s.pick("", "", "", "vi != vj", "vj < vi", "vi % 2 == 0")
    body = [f"{target} = {value}"]
    s.nest({"i": n, "j": m}, "SS", [f"if {guard}:", f"    {body[0]}"] if guard else body)


def _dilated(s: Sketch, m: int) -> None:
    """A window over W, with a step and gaps, forwards or backwards."""
    step, gap, taps = s.rng.randint(1, 2), s.rng.randint(1, 3), s.rng.randint(1, 3)
    at = f"vj * {step} + vr * {gap}"
    at = at if s.often(0.6) else f"{3 * m + 5} - ({at})"
    update = f"C[0, vj] = {s.pick(f'C[0, vj] + W[{at}]', f'T.max(C[0, vj], W[{at}])')}"
    init = ["with T.init():", f"    C[0, vj] = {s.start('C')}"]
    s.nest({"j": m, "r": taps}, "SR", [*init, update])


def _view(s: Sketch, n: int, m: int) -> None:
    """A column as a buffer with a stride, from the first or from the last element on."""
    s.count += 1
    kind, name, source = s.types["C"], s.count, s.pick("U", "A")
    at = s.pick("i", f"{n - 1} - i")
    s.put(1, f"for j in range({m}):", f'    with T.block("view{name}"):')
    s.put(3, f"vj = T.axis.spatial({m}, j)",
          f"T.reads({source}[0:{n}, vj], B[vj, 0:{n}])", f"T.writes(D[vj, 0:{n}])",
          f"c{name} = T.int32()",
          f'S{name} = T.match_buffer({source}[0:{n}, vj], ({n}, 1), "{kind}", '
          f"strides=[c{name}, 1], offset_factor=1)",
          f"for i in range({n}):",
          f"    D[vj, i] = {s.join(f'S{name}[{at}, 0]', 'B[vj, i]', kind)}")  # fmt: skip


SHAPES: dict[Callable[..., str], tuple[str, ...]] = {
    interleaved: ("fission", "compute_at", "compute_inline", "parallel", "reorder", "rfactor"),
    matrices: ("rfactor", "fuse_reduction_epilogue", "decompose_reduction", "cache_write",
               "reverse_compute_at", "reindex", "tile", "privatize_reduction"),
    lengths: ("ragged_tile", "ragged_tile", "fission", "reorder", "split", "cut_and_join"),
    transposed: ("transform_layout", "compute_inline", "reverse_compute_inline", "reindex",
                 "cache_read", "compute_at", "transform_block_layout", "reindex_cache"),
}  # fmt: skip
"""Each family with the operations of the machine that it is made for."""
