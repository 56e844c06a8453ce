"""The `rewrite` of each primitive's docstring is executed; each docstring has requirements."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from metasched.ir.stmt import BufferStore
from metasched.ir.visit import walk_stmts
from metasched.schedule.instruction import PRIMITIVES
from metasched.schedule.schedule import Schedule
from metasched.script import tir as T
from metasched.script.parser import parse
from metasched.script.printer import script

HEADER = re.compile(r"for (.*?) in (T\.\w+|range)\((.*?)\)")
STEPS: dict[str, Callable[[Schedule, list], object]] = {
    "split": lambda s, x: s.split(x[0], [None, 64]),
    "fuse": lambda s, x: s.fuse(*x),
    "reorder": lambda s, x: s.reorder(*reversed(x)),
    "skew": lambda s, x: s.skew(*x, 1),
    "delay": lambda s, x: s.delay(x[0], 2),
    "parallel": lambda s, x: s.parallel(x[0]),
    "vectorize": lambda s, x: s.vectorize(x[0]),
    "unroll": lambda s, x: s.unroll(x[0]),
    "bind": lambda s, x: s.bind(x[0], "threadIdx.x"),
}


def rewrite(name: str) -> tuple[str, str]:
    """The loop headers before and after in the docstring."""
    text = " ".join((PRIMITIVES.get(name).fn.__doc__ or "").split())
    before, after = text.split("rewrite ")[1].split(" -> ")[:2]
    shown = [HEADER.search(side) for side in (before, after)]
    assert shown[0] and shown[1]
    return shown[0].group(0), shown[1].group(0)


@pytest.mark.parametrize("name", STEPS)
def test_rewrite(name: str) -> None:
    before, after = rewrite(name)
    variables = HEADER.search(before).group(1).split(", ")
    shape = HEADER.search(before).group(3)
    iters = ", ".join(f"v{v}" for v in variables)
    func = parse(
        f'@T.prim_func\ndef f(A: T.Buffer(({shape},), "int32"), '
        f'B: T.Buffer(({shape},), "int32")):\n'
        f"    {before}:\n"
        '        with T.block("S"):\n'
        f'            {iters} = T.axis.remap("{"S" * len(variables)}", [{", ".join(variables)}])\n'
        f"            B[{iters}] = A[{iters}] + 1\n"
    )
    sch = Schedule(func, seed=0)
    assert f"{before}:" in sch.script()
    STEPS[name](sch, sch.get_loops("S"))
    assert f"{after}:" in sch.script()


# -- rewrites of what is stored -----------------------------------------------------------------

STORES: dict[str, Callable[[Schedule], object]] = {
    "cache_index": lambda s: s.cache_index("B", "global"),
    "cache_inplace": lambda s: s.cache_inplace("A", 0, "local"),
    "cache_read": lambda s: s.cache_read("B", 0, "local"),
    "cache_write": lambda s: s.cache_write("B", 0, "local"),
    "compute_inline": lambda s: s.compute_inline("B"),
    "decompose_padding": lambda s: s.decompose_padding("P", s.get_loops("P")[0]),
    "fuse_reduction_epilogue": lambda s: s.fuse_reduction_epilogue("C", "D"),
    "overcompute": lambda s: s.overcompute("B", [4]),
    "pad_einsum": lambda s: s.pad_einsum("C", [4, 4]),
    "reindex": lambda s: s.reindex("B", ("read", 0)),
    "reindex_cache_read": lambda s: s.reindex_cache_read("B", 0, "local", lambda i, j: (j, i)),
    "reindex_cache_write": lambda s: s.reindex_cache_write("B", 0, "local", lambda i, j: (j, i)),
    "reverse_compute_inline": lambda s: s.reverse_compute_inline("C"),
    "transform_layout": lambda s: s.transform_layout("B", "B", lambda i, j: (i // 4, j, i % 4)),
    "unsafe_set_dtype": lambda s: s.unsafe_set_dtype("B", 0, "float16"),
    "widen_dtype": lambda s: s.widen_dtype("B", 0, "float64"),
    "narrow_dtype": lambda s: s.narrow_dtype("B", 0, "int8"),
}
ACCESS = re.compile(r"(\w+)\[([^\]]*)\]")
AXIS = re.compile(r"\b[a-z]\b")


def stores_of(text: str) -> list[str]:
    """`B[i] = ...; C[i] += ... for 8 i` as one plain store each."""
    plain = re.sub(r"\(init: ([^)]*)\)", r"\1", text)
    out = []
    for part in plain.split(";"):
        store = re.sub(r" for \d+ i$", "", part.strip())
        out.append(re.sub(r"^(.*?) \+= ", r"\1 = \1 + ", store))
    return out


def program_of(text: str) -> str:
    """A function of these stores, each in its own block over loops of extent 8 (or as given)."""
    size = re.search(r" for (\d+) i", text)
    extent = size.group(1) if size else "8"
    dtype = "float32" if "float32" in text else "int32"
    stores = stores_of(text.split(" -> ")[0])
    shapes: dict[str, int] = {}
    for name, indices in ACCESS.findall("; ".join(stores)):
        shapes[name] = indices.count(",") + 1
    written = [ACCESS.match(s).group(1) for s in stores]
    inner = [n for n in written[:-1] if n != written[-1]]
    shape = lambda n: f"({(extent + ', ') * shapes[n]})"  # noqa: E731
    params = ", ".join(f'{n}: T.Buffer({shape(n)}, "{dtype}")' for n in shapes if n not in inner)
    lines = [f"@T.prim_func\ndef f({params}):"]
    lines += [f'    {n} = T.alloc_buffer({shape(n)}, "{dtype}")' for n in inner]
    for name, store in zip(written, stores, strict=True):
        left, _ = store.split(" = ", 1)
        axes = list(dict.fromkeys(AXIS.findall(store)))
        kinds = "".join("S" if a in AXIS.findall(left) else "R" for a in axes)
        lines += [
            f"    for {', '.join(axes)} in T.grid({', '.join([extent] * len(axes))}):",
            f'        with T.block("{name}"):',
            f"            {', '.join('v' + a for a in axes)} = "
            f'T.axis.remap("{kinds}", [{", ".join(axes)}])',
        ]
        inside = AXIS.sub(lambda m: f"v{m.group()}", store)
        if "R" in kinds:
            start = inside.split(" = ")[0]
            lines += ["            with T.init():", f"                {start} = 0"]
        lines.append(f"            {inside}")
    return "\n".join(lines) + "\n"


def renamed(store: str, names: str) -> str:
    """Iterators as x0, x1, ... in the order in which they appear."""
    found = list(dict.fromkeys(re.findall(names, store)))
    return re.sub(names, lambda m: f"x{found.index(m.group())}", store)


@pytest.mark.parametrize("name", STORES)
def test_rewrite_of_stores(name: str) -> None:
    text = " ".join((PRIMITIVES.get(name).fn.__doc__ or "").split()).split("rewrite ")[1]
    sch = Schedule(parse(program_of(text)), seed=0)
    STORES[name](sch)
    made = []
    for node in walk_stmts(sch.func.body):
        if isinstance(node, BufferStore):
            indices = ", ".join(script(i) for i in node.indices)
            made.append(f"{node.buffer.name}[{indices}] = {script(node.value)}")
    wanted = [renamed(s, AXIS.pattern) for s in stores_of(text.split(" -> ")[1])]
    assert [renamed(s, r"\bv\w+\b") for s in made] == wanted


# -- rewrites of a line -------------------------------------------------------------------------

LINES: dict[str, Callable[[Schedule], object]] = {
    "annotate_buffer_access": lambda s: s.annotate_buffer_access(
        "C", 0, "read", lambda i: ((i, i + 2),)
    ),
    "reorder_block_iter_var": lambda s: s.reorder_block_iter_var("P", [1, 0]),
    "set_scope": lambda s: s.set_scope("B", 0, "local"),
    "storage_align": lambda s: s.storage_align("B", 0, 0, 32, 8),
    "unsafe_hide_buffer_access": lambda s: s.unsafe_hide_buffer_access("D", "read", [1]),
}


@T.prim_func
def lines(
    A: T.Buffer((4,), "float32"), C: T.Buffer((4,), "float32"), D: T.Buffer((4,), "float32"),
    P: T.Buffer((4, 4), "float32"),
):  # fmt: skip
    B = T.alloc_buffer((4,))
    for i in range(4):
        with T.block("B"):
            vi = T.axis.spatial(4, i)
            B[vi] = A[vi]
    for i in range(4):
        with T.block("C"):
            vi = T.axis.spatial(4, i)
            C[vi] = A[vi] * T.float32(2)
    for i in range(4):
        with T.block("D"):
            vi = T.axis.spatial(4, i)
            T.reads(A[vi], B[vi])
            T.writes(D[vi])
            D[vi] = A[vi]
    for i, j in T.grid(4, 4):
        with T.block("P"):
            vi, vj = T.axis.remap("SS", [i, j])
            P[vi, vj] = T.float32(1)


@pytest.mark.parametrize("name", LINES)
def test_rewrite_of_a_line(name: str) -> None:
    text = " ".join((PRIMITIVES.get(name).fn.__doc__ or "").split()).split("rewrite ")[1]
    sch = Schedule(lines, seed=0)
    plain = lambda s: s.replace(" : ", ":").replace(', "float32"', "")  # noqa: E731
    *before, after = text.split(" -> ")
    assert all(line in plain(sch.script()) for line in before)
    count = plain(sch.script()).count(after)
    LINES[name](sch)
    assert plain(sch.script()).count(after) == count + 1


@pytest.mark.parametrize("name", list(PRIMITIVES))
def test_every_primitive_says_what_it_does_and_needs(name: str) -> None:
    kind = PRIMITIVES.get(name)
    doc = kind.fn.__doc__ or ""
    assert len(doc.splitlines()[0]) > 20
    if not kind.pure and kind.params and name != "enter_postproc":
        assert "requires" in doc
