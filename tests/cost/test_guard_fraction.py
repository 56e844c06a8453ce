"""Passing: shares against counting, and what a program's features make of them."""

from __future__ import annotations

from itertools import pairwise, product

import pytest
from cost.tiled import block, nest

from metasched.cost.features import FEATURE_NAMES, features, work
from metasched.cost.guard_fraction import busy_cores, conditions, guard_fraction
from metasched.ir.buffer import Buffer
from metasched.ir.expr import TRUE, Cast, Var, logical_and
from metasched.ir.func import FINITE, IRModule, PrimFunc
from metasched.ir.stmt import Block, BlockRealize, BufferStore, FrozenMap, IfThenElse, IterKind
from metasched.schedule.schedule import Schedule
from metasched.script import tir as T
from metasched.target import Target
from metasched.workloads import get

TARGET = Target.of("llvm -mcpu=haswell -num-cores=2")
i, j, k = Var("i"), Var("j"), Var("k")
EXTENTS = {i: 12, j: 5, k: 3}
BOUND = {v: (n, extent) for n, (v, extent) in enumerate(EXTENTS.items())}


def counted(holds, inner=0, judge=any):
    """Of the iterations outside of the innermost loops, where it holds for any (all) of these."""
    ranges = [range(extent) for extent in EXTENTS.values()]
    outer, within = ranges[: len(ranges) - inner], ranges[len(ranges) - inner :]
    found = [judge(holds(*at, *rest) for rest in product(*within)) for at in product(*outer)]
    return sum(found) / len(found)


@pytest.mark.parametrize(
    ("test", "holds"),
    [
        (i * 5 + j < 57, lambda i, j, k: i * 5 + j < 57),
        (i * 2 + k <= 13, lambda i, j, k: i * 2 + k <= 13),
        (j * 3 + k - 1 >= 0, lambda i, j, k: j * 3 + k - 1 >= 0),
        (14 - i > j, lambda i, j, k: 14 - i > j),
        ((i // 4) * 5 + j < 13, lambda i, j, k: (i // 4) * 5 + j < 13),
        ((i % 4) * 3 + k < 10, lambda i, j, k: (i % 4) * 3 + k < 10),
        (logical_and(i < 11, j * 3 + k < 14), lambda i, j, k: i < 11 and j * 3 + k < 14),
    ],
)
def test_shares_are_those_that_counting_gives(test, holds):
    found, last = conditions(test, BOUND), {BOUND[k][0]}
    assert guard_fraction(found) == pytest.approx(counted(holds))
    assert guard_fraction(found, last) == pytest.approx(counted(holds, 1))
    assert guard_fraction(found, last, whole=True) == pytest.approx(counted(holds, 1, all))


@pytest.mark.parametrize(
    ("test", "holds"),
    [
        (logical_and(j * 2 <= i, i < j * 2 + 4), lambda i, j, k: j * 2 <= i < j * 2 + 4),
        (logical_and(i + k < 8, 3 <= i + k), lambda i, j, k: 3 <= i + k < 8),
        (logical_and(i < 9, i + j < 11), lambda i, j, k: i < 9 and i + j < 11),
    ],
)
def test_conditions_on_the_same_loops_are_judged_together(test, holds):
    """Rows of a skewed loop: the product of the shares of both conditions is off by 0.05 to 0.3."""
    found = conditions(test, BOUND)
    alone = guard_fraction(found[:1]) * guard_fraction(found[1:])
    assert guard_fraction(found) == pytest.approx(counted(holds))
    assert alone != pytest.approx(counted(holds), abs=0.05)


def test_conditions_on_many_iterations_are_judged_by_a_sample():
    bound = {v: (n, 1000) for n, v in enumerate(EXTENTS)}
    found = conditions(logical_and(j <= i, i < j + 500), bound)
    assert guard_fraction(found) == pytest.approx(0.375, abs=0.03)
    assert guard_fraction(found) == guard_fraction(list(found))


def wavefront(cores, passes):
    """The busy cores of a loop over `i` inside a loop over `j`, counted; each core takes one share
    of the iterations from either end."""
    cuts = [s * 12 // (2 * cores) for s in range(2 * cores + 1)]
    spent = waited = 0
    for at in range(5):
        work = [sum(passes(x, at, y) for y in range(3)) for x in range(12)]
        parts = [sum(work[a:b]) for a, b in pairwise(cuts)]
        spent += sum(work)
        waited += max(parts[c] + parts[-1 - c] for c in range(cores))
    return spent / waited


@pytest.mark.parametrize("cores", [1, 2, 3])
@pytest.mark.parametrize(
    ("test", "passes"),
    [
        (logical_and(j * 2 <= i, i < j * 2 + 4), lambda i, j, k: j * 2 <= i < j * 2 + 4),
        (logical_and(j <= i, i + k < j + 3), lambda i, j, k: j <= i and i + k < j + 3),
        (logical_and(i <= j, k < 2), lambda i, j, k: i <= j),
    ],
)
def test_cores_of_a_wavefront_wait_for_the_core_with_the_most_work(test, passes, cores):
    """Time tiles that start one after another leave cores without work."""
    found = busy_cores(conditions(test, BOUND), (0, 12), {1}, cores)
    assert found == pytest.approx(wavefront(cores, passes))
    assert cores == 1 or found < cores


def test_conditions_without_a_loop_around_do_not_change_the_busy_cores():
    assert busy_cores(conditions(i * 5 + j < 57, BOUND), (0, 12), {2}, 2) is None
    assert busy_cores(conditions(j * 3 + k < 14, BOUND), (0, 12), {1, 2}, 2) is None
    assert busy_cores([], (0, 12), {1}, 2) is None


def test_busy_cores_of_many_iterations_are_judged_by_a_sample():
    bound = {v: (n, 1000) for n, v in enumerate(EXTENTS)}
    found = busy_cores(conditions(logical_and(j <= i, i < j + 500), bound), (0, 1000), {1}, 2)
    assert 1.0 < found < 2.0


@pytest.mark.parametrize(
    "test",
    [
        lambda X: X[i] < 3,
        lambda X: X[i] > j,
        lambda X: T.bitwise_xor(i, T.shift_left(1, j)) > i,
        lambda X: Var("unbound") > i,
        lambda X: X[i] // 2 > j,
    ],
)
def test_guard_fraction_of_unknown_conditions_is_one(test):
    X = Buffer.of("X", (12,), "int32")
    assert guard_fraction(conditions(test(X), BOUND)) == 1.0


def test_a_cast_keeps_the_digits():
    found = conditions(Cast("int64", i) * 2 < Cast("int64", j) + 9, BOUND)
    assert guard_fraction(found) == pytest.approx(counted(lambda i, j, k: i * 2 < j + 9))


def machine(mod, **kw):
    values = dict(zip(FEATURE_NAMES, features(mod, TARGET, **kw), strict=True))
    return {name[8:]: float(v) for name, v in values.items() if name.startswith("machine.")}


def rows(tile, wrap=False, n=48):
    """B[v] = A[v] + A[v] for 48 rows of 64, in tiles; the condition on the block or around it."""
    A, B = Buffer.of("A", (n, 64)), Buffer.of("B", (n, 64))
    o, t, c, v, vc = (Var(x) for x in ("o", "t", "c", "v", "vc"))
    store = BufferStore(B, A[v, vc] + A[v, vc], (v, vc))
    iters = ((v, n, IterKind.SPATIAL), (vc, 64, IterKind.SPATIAL))
    test = o * tile + t < n if n % tile else TRUE
    body = BlockRealize(
        (o * tile + t, c), TRUE if wrap else test, block("b", iters, store, (A,), (B,))
    )
    loops = [(o, -(-n // tile), ""), (t, tile, "u")]
    inner = nest([(c, 64, "v")], body)
    tree = nest(loops, IfThenElse(test, inner, None) if wrap else inner)
    return IRModule.of(PrimFunc((A, B), BlockRealize.plain(Block("root", (), (), (), tree))))


@pytest.mark.parametrize("wrap", [False, True])
def test_tiles_that_reach_beyond_the_end_are_partly_run(wrap):
    even, odd = machine(rows(8)), machine(rows(10, wrap))
    assert (even["block.ran"], even["block.partial"]) == (pytest.approx(0, abs=0.01), 0.0)
    assert odd["block.ran"] == pytest.approx(0, abs=0.01)  # each tile has a row to compute
    assert odd["block.partial"] == pytest.approx(0.2)  # of five tiles the last


def test_cycles_are_measured_by_the_work_of_the_unscheduled_program():
    """A program that computes twice as much is no better for its own ideal being twice as high."""
    once, twice = rows(8), rows(8, n=96)
    ideal = work(once, TARGET)
    assert work(twice, TARGET) == 2 * ideal
    assert machine(twice)["bound"] == pytest.approx(machine(once)["bound"], abs=0.05)
    assert machine(twice, work=ideal)["bound"] > machine(once, work=ideal)["bound"] + 0.9


def test_products_with_the_zeros_of_padding_count_as_left_out():
    """A 3x3 convolution of 6x6 with padding: per dimension 16 of the 18 taps have an input."""
    func = get("c2d").func((1, 6, 6, 64, 64, 3, 1, 1))
    assert func.attrs[FINITE]
    sch = Schedule(func)
    loops = sch.get_loops(sch.get_block("conv"))
    n, h, w, o, r, s, c = loops
    sch.reorder(n, h, w, r, s, c, o)
    sch.vectorize(o)
    kept = machine(sch.mod)["block.ran"]
    assert 2**kept == pytest.approx((16 / 18) ** 2, abs=0.01)
    attrs = {name: value for name, value in func.attrs.items() if name != FINITE}
    loose = PrimFunc(func.params, sch.mod["main"].body, attrs=FrozenMap(attrs))
    assert machine(loose)["block.ran"] == pytest.approx(0, abs=0.01)
