"""ragged_tiling, blocked_elimination: register tiles of updates of run-time length; right for odd
sizes too."""

from __future__ import annotations

import numpy as np
import pytest

import metasched as ms
from metasched.kinds.cpu import cpu_postprocs
from metasched.schedule.schedule import Schedule
from metasched.space.generate import SpaceGenerator
from metasched.space.modules.blocked_elimination import BlockedElimination
from metasched.space.modules.enclose_statements import EncloseStatements
from metasched.space.modules.loop_distribution import LoopDistribution
from metasched.space.modules.ragged_tiling import RaggedTiling
from metasched.space.modules.row_elimination import RowElimination
from metasched.target import Target


def spaces(func, cores=2, *first):
    modules = (
        *first,
        LoopDistribution(), RowElimination(cores), BlockedElimination(256, 16, cores),
        RaggedTiling(256, 16, cores),
    )  # fmt: skip
    return SpaceGenerator(modules).generate(func, Target.native())


@pytest.mark.parametrize(
    ("name", "shape", "tiles"),
    [
        ("poly.trmm", (24, 24), 1),
        ("poly.trmm", (23, 29), 1),
        ("poly.symm", (21, 26), 2),
        ("poly.lu", (48,), 1),
        ("poly.lu", (53,), 1),
        ("poly.lu", (56,), 2),
        ("poly.ludcmp", (53,), 1),
    ],
)
def test_triangles_of_products_are_tiled(name, shape, tiles):
    work = ms.workloads.get(name)
    trace = max(spaces(work.func(shape)), key=lambda t: str(t).count("cache_update"))
    assert str(trace).count("cache_update") == tiles
    agrees(work, shape, trace)


@pytest.mark.parametrize("size", [48, 53])
def test_later_columns_of_a_block_of_rows_run_in_strips(size):
    func = ms.workloads.get("poly.lu").func((size,))
    trace = max(spaces(func), key=lambda t: str(t).count("cache_update"))
    sch = Schedule(func, seed=0)
    trace.apply(sch)
    blocks = sch.get_child_blocks(sch.get_block("root"))
    kinds = [[sch.get(loop).kind.value for loop in sch.get_loops(block)] for block in blocks]
    strip = ["serial", "parallel", "serial", "serial", "unroll", "vectorized"]
    assert kinds.count(strip) == (1 if size == 48 else 2)


@pytest.mark.parametrize("shape", [(30, 24), (27, 23)])
def test_a_block_of_steps_uses_a_strip_of_later_columns(shape):
    work = ms.workloads.get("poly.gramschmidt")
    (trace,) = (t for t in spaces(work.func(shape)) if "cut_loop" in str(t))
    assert "parallel" in str(trace)
    agrees(work, shape, trace)


@pytest.mark.parametrize(
    "change", [("range(i + 1, 24)", "range(i, 24)"), ("range(i + 1, 24)", "range(i + 1, 23)")]
)
def test_other_loops_are_no_later_columns(change):
    text = """
@T.prim_func
def main(A: T.Buffer((24, 24), "float64")):
    for i in range(24):
        with T.block("scale"):
            A[i, i] = A[i, i] * T.float64(2)
        for j in range(i + 1, 24):
            for k in range(24):
                with T.block("update"):
                    A[k, j] = A[k, j] + A[k, i]
"""
    assert any("cut_loop" in str(t) for t in spaces(ms.script.parse(text)))
    assert all("cut_loop" not in str(t) for t in spaces(ms.script.parse(text.replace(*change))))


def test_later_columns_without_a_block_are_no_strip():
    text = """
@T.prim_func
def main(A: T.Buffer((24,), "float64"), B: T.Buffer((24,), "float64")):
    for i in range(24):
        with T.block("A"):
            A[i] = B[i]
        for j in range(i + 1, 24):
            x = B[i]
"""
    generator = SpaceGenerator((BlockedElimination(256, 16, 2),))
    generator.generate(ms.script.parse(text), Target.native())
    assert not generator.failures


def agrees(work, shape, trace):
    func, target = work.func(shape), Target.native()
    rng = np.random.default_rng(0)
    args = [rng.normal(size=[int(s) for s in b.shape]) for b in func.params]
    args = work.draw(rng, shape) if work.draw else args
    want = [a.copy() for a in args]
    work.reference(shape, *want)
    for seed in range(3):
        sch = Schedule(func, seed=seed)
        trace.apply(sch)
        sch.enter_postproc()
        for postproc in cpu_postprocs(target):
            postproc(sch, target)
        got = [a.copy() for a in args]
        ms.build(sch.func)(*got)
        for one, other in zip(got, want, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "shape"), [("poly.trmm", (30, 3)), ("poly.cholesky", (30,)), ("poly.lu", (40,))]
)
def test_what_holds_no_tile_stays_as_it_is(name, shape):
    func = ms.workloads.get(name).func(shape)
    assert all("cache_update" not in str(trace) for trace in spaces(func))


def test_one_core_gets_no_parallel_columns():
    func = ms.workloads.get("poly.trmm").func((24, 24))
    assert "parallel" not in str(spaces(func, cores=1)[0])


RIGHT = {
    "one loop over the rows": """
        for i in range(k + 1, {n}):
            A[i, k] = A[i, k] / A[k, k]
            for j in range(k + 1, {n}):
                A[i, j] = A[i, j] - A[i, k] * A[k, j]
""",
    "a loop that divides": """
        for i in range(k + 1, {n}):
            A[i, k] = A[i, k] / A[k, k]
        for i in range(k + 1, {n}):
            for j in range(k + 1, {n}):
                A[i, j] -= A[i, k] * A[k, j]
""",
    "a row that is divided": """
        for j in range(k + 1, {n}):
            A[k, j] = A[k, j] / A[k, k]
        for i in range(k + 1, {n}):
            for j in range(k + 1, {n}):
                A[i, j] -= A[i, k] * A[k, j]
""",
    "a variable": """
        for i in range(k + 1, {n}):
            w = A[i, k] / A[k, k]
            A[i, k] = w
            for j in range(k + 1, {n}):
                A[i, j] -= w * A[k, j]
""",
    "a variable that is stored at the end": """
        for i in range(k + 1, {n}):
            w = A[i, k] / A[k, k]
            for j in range(k + 1, {n}):
                A[i, j] -= w * A[k, j]
            A[i, k] = w
""",
    "a number that divides": """
        d[0] = 1.0 / A[k, k]
        for i in range(k + 1, {n}):
            A[i, k] = A[i, k] * d[0]
            for j in range(k + 1, {n}):
                A[i, j] -= A[i, k] * A[k, j]
""",
}


def right(form: str, size: int) -> ms.PrimFunc:
    head = f'@T.prim_func\ndef main(A: T.Buffer(({size}, {size}), "float64")):\n'
    head += '    d = T.alloc_buffer((1,), "float64")\n' if "d[0]" in RIGHT[form] else ""
    return ms.script.parse(f"{head}    for k in range({size}):{RIGHT[form].format(n=size)}")


@pytest.mark.parametrize("form", RIGHT)
@pytest.mark.parametrize("size", [48, 53])
def test_steps_that_update_all_later_rows_run_in_blocks(form, size):
    in_blocks(right(form, size))


@pytest.mark.parametrize("shape", [(48, 49, 49), (52, 53, 53), (48, 61, 50), (53, 60, 77)])
def test_a_matrix_may_have_more_rows_and_columns_than_steps(shape):
    """The last step of a square matrix does nothing, and may be left out."""
    steps, rows, columns = shape
    in_blocks(
        ms.script.parse(f"""
@T.prim_func
def main(A: T.Buffer(({rows}, {columns}), "float64")):
    for k in range({steps}):
        for i in range(k + 1, {rows}):
            A[i, k] = A[i, k] / A[k, k]
            for j in range(k + 1, {columns}):
                A[i, j] -= A[i, k] * A[k, j]
""")
    )


def in_blocks(func):
    """One design space has tiles of updates, and gives what the program as written gives."""
    target = Target.native()
    modules = (
        EncloseStatements(), LoopDistribution(), RowElimination(2), BlockedElimination(256, 16, 2)
    )  # fmt: skip
    found = SpaceGenerator(modules).generate(func, target)
    trace = max(found, key=lambda t: str(t).count("cache_update"))
    assert "cache_update" in str(trace)
    first, *others = [b.constant_shape() for b in func.buffers]
    rng = np.random.default_rng(0)
    before = [rng.normal(size=first) + first[0] * np.eye(*first)]
    before += [rng.normal(size=shape) for shape in others]
    want = [array.copy() for array in before]
    ms.build(func)(*want)
    for seed in range(2):
        sch = Schedule(func, seed=seed)
        trace.apply(sch)
        sch.enter_postproc()
        for postproc in cpu_postprocs(target):
            postproc(sch, target)
        got = [array.copy() for array in before]
        ms.build(sch.func)(*got)
        for one, other in zip(got, want, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("steps", [52, 53])
@pytest.mark.parametrize(
    ("start", "behind"),
    [
        ("k + 1", "b[i] -= f * b[k]"),
        ("k", "b[i] -= f * b[k]"),
        ("k", "b[i] = b[i] - f\n            c[i] -= f * c[k]"),
        ("k", "A[i, k] = 0.0"),
    ],
)
def test_a_right_hand_side_gets_steps_of_its_own(start, behind, steps):
    """The multiplier of a row is stored nowhere, or the columns begin at the pivot."""
    text = f"""
@T.prim_func
def main(A: T.Buffer((53, 53), "float64"), b: T.Buffer((53,), "float64"),
         c: T.Buffer((53,), "float64")):
    for k in range({steps}):
        for i in range(k + 1, 53):
            f = A[i, k] / A[k, k]
            for j in range({start}, 53):
                A[i, j] -= f * A[k, j]
            {behind}
"""
    in_blocks(ms.script.parse(text))


@pytest.mark.parametrize(
    "behind", ["A[i, 52] -= f * A[k, k]", "A[k, k] += f", "A[52, k] = A[52, k] + b[i] * f"]
)
def test_what_later_rows_need_of_a_row_stays_behind_its_update(behind):
    """The programs stay right, with or without tiles."""
    func = ms.script.parse(f"""
@T.prim_func
def main(A: T.Buffer((53, 53), "float64"), b: T.Buffer((53,), "float64")):
    for k in range(53):
        for i in range(k + 1, 53):
            f = A[i, k] / A[k, k]
            for j in range(k + 1, 53):
                A[i, j] -= f * A[k, j]
            {behind}
""")
    rng = np.random.default_rng(0)
    before = [rng.normal(size=(53, 53)) + 53 * np.eye(53), rng.normal(size=53)]
    want = [array.copy() for array in before]
    ms.build(func)(*want)
    for trace in spaces(func, 2, EncloseStatements()):
        sch = Schedule(func, seed=0)
        trace.apply(sch)
        got = [array.copy() for array in before]
        ms.build(sch.func)(*got)
        np.testing.assert_allclose(got[0], want[0], rtol=1e-9, atol=1e-9)
