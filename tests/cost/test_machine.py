"""Machine features: ratios of a tiled matmul by hand, and what they do when the machine changes."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from cost.tiled import Matmul, block, nest, sample

from metasched.analysis.block import FOLD, SCAN
from metasched.cost.features import FEATURE_NAMES, _rows, features, work
from metasched.cost.machine import MACHINE_FEATURES, RAGGED, machine_features
from metasched.cost.summary import summarize
from metasched.ir.buffer import Buffer
from metasched.ir.expr import LT, TRUE, Var, as_expr, compare
from metasched.ir.func import IRModule, PrimFunc
from metasched.ir.stmt import Block, BlockRealize, BufferStore, FrozenMap, IterKind, evolve
from metasched.lower.passes.prefetch import AHEAD
from metasched.schedule.schedule import Schedule
from metasched.script import parse
from metasched.script import tir as T
from metasched.target import Target
from metasched.workloads import get

TARGET = Target.of("llvm -mcpu=haswell -num-cores=2")


def machine(mod, target=TARGET, work=0.0):
    values = dict(zip(FEATURE_NAMES, features(mod, target, work), strict=True))
    return {name: float(values[f"machine.{name}"]) for name in MACHINE_FEATURES}


def program(ti=(2, 8, 1, 4), tj=(1, 2, 2, 16), tk=(8, 8)):
    return Matmul(64).program(ti, tj, tk)


def test_the_register_block_of_the_update():
    """4 rows of 16 floats, two vectors of eight each: 8 accumulators, the loops around of 2."""
    found = machine(program())
    assert found["block.accumulators"] == 3.0
    assert found["block.pressure"] == 0.5
    assert found["block.lanes"] == 3.0
    assert found["block.waste"] == 1.0
    assert found["block.chain"] == 0.0
    assert found["block.size"] == pytest.approx(np.log2(9))
    assert found["block.gathers"] == 0.0
    assert found["block.steps"] == 3.0  # the eight steps of the inner reduction


@pytest.mark.parametrize(
    ("multiples", "lanes"), [((1, 4, 1, 1), 4), ((1, 1, 16, 1), 4), ((1, 1, 16, 1), 32)]
)
def test_a_vector_of_clamped_elements_is_no_gather(multiples, lanes):
    """Overcompute reads the last element again, in rows or in columns."""
    sch = Schedule(get("gmm").func((1, 30, 28, 8)))
    block = sch.get_block("Z")
    sch.cache_write(block, 0, "local")
    sch.overcompute(block, list(multiples))
    *_, columns, terms = sch.get_loops(block)
    sch.reorder(terms, columns)
    sch.vectorize(sch.split(columns, [None, lanes])[1])
    assert machine(sch.mod)["block.gathers"] == 0.0


def test_reads_of_narrow_types_are_converted_in_the_block():
    """For each step: 8 multiply-adds of 4 rows by 2 vectors, and conversions of 6 reads."""
    sizes = {}
    for kind in ("float32", "float16", "bfloat16"):

        @T.prim_func
        def product(
            A: T.Buffer((4, 64), kind),
            B: T.Buffer((64, 16), kind),
            C: T.Buffer((4, 16), "float32"),
        ):
            for k in T.serial(64):
                for i in T.unroll(4):
                    for j in T.vectorized(16):
                        with T.block("C"):
                            vk, vi, vj = T.axis.remap("RSS", [k, i, j])
                            C[vi, vj] += T.cast(A[vi, vk], "float32") * T.cast(B[vk, vj], "float32")

        sizes[kind] = round(2 ** machine(product)["block.size"] - 1)
    assert sizes == {"float32": 8, "float16": 8 + 6, "bfloat16": 8 + 2 * 6}


def test_a_vector_of_two_lanes_wastes_six_of_eight():
    assert machine(program(tj=(1, 2, 16, 2)))["block.waste"] == 4.0


@pytest.mark.parametrize(("lanes", "instructions"), [(15, 4), (16, 2)])
def test_what_is_left_beside_whole_registers_takes_powers_of_two(lanes, instructions):
    """Fifteen elements are vectors of 8, 4 and 2 and a scalar; sixteen are two registers."""

    @T.prim_func
    def product(
        A: T.Buffer((4, 64), "float32"), B: T.Buffer((64, lanes), "float32"),
        C: T.Buffer((4, lanes), "float32"),
    ):  # fmt: skip
        for k in T.serial(64):
            for i in T.unroll(4):
                for j in T.vectorized(lanes):
                    with T.block("C"):
                        vk, vi, vj = T.axis.remap("RSS", [k, i, j])
                        C[vi, vj] += A[vi, vk] * B[vk, vj]

    assert round(2 ** machine(product)["block.size"] - 1) == 4 * instructions


def test_tasks_and_cores():
    assert machine(program())["cores"] == 1.0 and machine(program())["tasks"] == 0.0
    uneven = machine(program(ti=(1, 16, 1, 4)))
    assert uneven["cores"] == 0.5  # one task, two cores
    assert uneven["compute"] == pytest.approx(machine(program())["compute"] + 1, abs=0.01)


def test_more_cores_of_the_same_kind_change_the_balance_alone():
    four = machine(program(), dataclasses.replace(TARGET, num_cores=4))
    two = machine(program())
    assert four["cores"] == 0.5 and four["tasks"] == -1.0
    assert four["block.accumulators"] == two["block.accumulators"]


def test_a_smaller_cache_brings_traffic_back():
    small = dataclasses.replace(TARGET, l1_bytes=1024)
    assert machine(program(), small)["l1_l2"] > machine(program())["l1_l2"] + 0.5


def test_an_absent_second_cache_holds_as_much_as_the_first():
    without = dataclasses.replace(TARGET, l2_bytes=0)
    small = dataclasses.replace(TARGET, l2_bytes=TARGET.l1_bytes)
    assert machine(program(), without) == machine(program(), small)
    assert machine(program(), without)["footprint"] > machine(program())["footprint"]


def test_without_caches_everything_comes_from_memory():
    none = dataclasses.replace(TARGET, l1_bytes=0, l2_bytes=0, l3_bytes=0)
    found = machine(program(), none)
    assert all(np.isfinite(value) for value in found.values())
    assert found["l3_memory"] > machine(program())["l3_memory"]


@pytest.mark.parametrize("gpu", ["cuda", "nvidia/nvidia-h100"])
def test_a_target_described_without_caches_has_features(gpu):
    found = machine(program(), Target.of(gpu))
    assert all(np.isfinite(value) for value in found.values())
    assert found["block.pressure"] == 8 * 2 / 64  # of 65536 registers for 1024 threads


def test_sizes_of_the_operator_cancel():
    """The same inner loops over a larger product: nearly the same share of its ideal."""
    small = machine(Matmul(64).program((2, 4, 2, 4), (1, 2, 2, 16), (8, 8)))
    large = machine(Matmul(128).program((2, 8, 2, 4), (1, 4, 2, 16), (16, 8)))
    assert abs(small["compute"] - large["compute"]) < 0.1
    assert abs(small["loads"] - large["loads"]) < 0.1


def test_the_bound_follows_the_made_up_machine():
    programs, seconds = sample(120, seed=4)
    bound = np.array([machine(p)["bound"] for p in programs])
    assert np.corrcoef(np.argsort(np.argsort(bound)), np.argsort(np.argsort(seconds)))[0, 1] > 0.5


def row_sums(notes=(), row=256, kind="", guard=lambda k: TRUE):
    """S[i] = S[i] + X[i, k] under notes on the block."""
    X, out = Buffer.of("X", (64, row)), Buffer.of("S", (64,))
    i, k, vi, vk = Var("i"), Var("k"), Var("vi"), Var("vk")
    store = BufferStore(out, out[vi] + X[vi, vk], (vi,))
    iters = ((vi, 64, IterKind.SPATIAL), (vk, row, IterKind.REDUCE))
    summed = evolve(block("sum", iters, store, (X, out), (out,)), annotations=FrozenMap(notes))
    body = nest([(i, 64, "p"), (k, row, kind)], BlockRealize((i, k), guard(k), summed))
    root = Block("root", (), (), (), body)
    return IRModule.of(PrimFunc((X, out), BlockRealize.plain(root)))


def test_a_folded_reduction_runs_in_vectors():
    scalar, one, four = (machine(row_sums({FOLD: w} if w else {})) for w in (0, 8, 32))
    assert scalar["block.fold"] == 0.0 and scalar["block.lanes"] == 0.0
    assert one["block.lanes"] == 3.0 and one["block.accumulators"] == 0.0
    assert four["block.fold"] == pytest.approx(np.log2(33)) and four["block.accumulators"] == 2.0
    assert one["compute"] <= scalar["compute"] - 2.9  # an eighth of the statements
    assert four["compute"] < one["compute"]  # four sums at a time hide the latency of one


def recurrence(*order: str) -> IRModule:
    """A recurrence of 64 steps for 256 numbers, eight lanes wide, with its loops in an order."""

    @T.prim_func
    def step(X: T.Buffer((256,), "int32")):
        for i, t in T.grid(256, 64):
            with T.block("step"):
                vi = T.axis.spatial(256, i)
                X[vi] = X[vi] * 5 + 1

    sch = Schedule(step)
    i, t = sch.get_loops("step")
    loops = dict(zip(("outer", "lanes"), sch.split(i, [None, 8]), strict=True), steps=t)
    sch.reorder(*(loops[name] for name in order))
    sch.vectorize(loops["lanes"])
    return sch.mod


@pytest.mark.parametrize("lookups", [1, 3])
def test_each_entry_of_a_table_is_loaded_lane_by_lane(lookups):
    """The entries were taken for neighbours: inlining them three times seemed to cost nothing."""

    @T.prim_func
    def table(
        S: T.Buffer((256,), "int32"), E: T.Buffer((256,), "int32"), O: T.Buffer((256,), "int32")
    ):
        for i in range(256):
            with T.block("O"):
                v = T.axis.spatial(256, i)
                O[v] = sum([E[S[v] ^ k] for k in range(1, lookups)], E[S[v]])

    sch = Schedule(table)
    _, lanes = sch.split(sch.get_loops("O")[0], [None, 8])
    sch.vectorize(lanes)
    found = machine(sch.mod)
    assert found["block.gathers"] == lookups
    assert found["loads"] > 4


@pytest.mark.parametrize("place", ["A[vi, vj]", "T.floor(B[vi, vj] * T.float32(8))", "at"])
def test_lanes_at_bound_places_are_loaded_one_by_one(place):
    """A place that a variable names was taken for one element, the same for all lanes."""
    text = f"""
@T.prim_func
def main(A: T.Buffer((64, 64), "int32"), B: T.Buffer((64, 64)), E: T.Buffer((64,)),
         O: T.Buffer((64, 64))):
    for i, j in T.grid(64, 64):
        with T.block("O"):
            vi, vj = T.axis.remap("SS", [i, j])
            at: T.float32 = B[vi, vj] * T.float32(8)
            place: T.int32 = T.cast({place}, "int32")
            next: T.int32 = T.min(place + 1, 63)
            O[vi, vj] = E[place] + E[next] * at
"""
    sch = Schedule(parse(text))
    _, lanes = sch.split(sch.get_loops("O")[1], [None, 8])
    sch.vectorize(lanes)
    assert machine(sch.mod)["block.gathers"] == 2.0


CONDITIONAL = """
@T.prim_func
def f(A: T.Buffer((64, 64)), B: T.Buffer((64, 16)), C: T.Buffer((64, 16))):
    L = T.alloc_buffer((64, 16), "float32", scope="local")
    for i, k in T.grid(64, 64):
        for k_1 in T.unroll({unrolled}):
            for j in T.vectorized(16):
                with T.block("sum"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    vk = T.axis.opaque(64 * {unrolled}, k * {unrolled} + k_1)
                    if {test}:
                        {to}[vi, vj] = {to}[vi, vj] + A[vi, vk % 64] * B[vk % 64, vj]
"""


@pytest.mark.parametrize("unrolled", [2, 4])
def test_results_under_a_condition_of_their_reduction_go_to_memory(unrolled):
    """LLVM stores a result at each step, unless it is local or the condition stays the same."""

    def loads(test: str, to: str) -> float:
        return machine(parse(CONDITIONAL.format(test=test, to=to, unrolled=unrolled)))["loads"]

    assert loads("vk <= vi", "C") > loads("vk <= vi", "L") + 0.5
    assert loads("vi < 32", "C") == pytest.approx(loads("vi < 32", "L"), abs=0.1)


def test_lanes_around_a_serial_loop_run_inside_it():
    outside = machine(recurrence("outer", "lanes", "steps"))
    assert outside == machine(recurrence("outer", "steps", "lanes"))
    assert outside["block.lanes"] == 3.0


def running_sums(width: int) -> Schedule:
    """Running sums of 64 rows of 512 numbers, scanned in lanes if `width` is not 0."""

    @T.prim_func
    def sums(X: T.Buffer((64, 512)), Y: T.Buffer((64, 512))):
        for i, j in T.grid(64, 512):
            with T.block("sums"):
                vi, vj = T.axis.spatial(64, i), T.axis.scan(512, j)
                Y[vi, vj] = T.if_then_else(vj == 0, X[vi, vj], Y[vi, vj - 1] + X[vi, vj])

    sch = Schedule(sums)
    if width:
        sch.annotate(sch.get_block("sums"), SCAN, width)
    return sch


def test_a_scan_in_lanes_runs_in_vectors():
    steps, lanes = (machine(running_sums(width).mod) for width in (0, 64))
    assert steps["block.lanes"] == 0.0 and lanes["block.lanes"] >= 3.0
    assert lanes["block.held"] == 0.0  # each step has a result
    assert lanes["compute"] < steps["compute"] - 1.0 and lanes["loads"] < steps["loads"] - 1.0
    few = machine(running_sums(8).mod)  # one vector waits for the result of the vector before
    assert lanes["compute"] < few["compute"] < steps["compute"]


def update_in_place(fold: int) -> Schedule:
    """The inner loop of a Cholesky factorization: one buffer, read at two other places."""

    @T.prim_func
    def cholesky(A: T.Buffer((64, 64), "float32")):
        for i in range(64):
            for j in range(i):
                for k in range(j):
                    with T.block("update"):
                        vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                        A[vi, vj] = A[vi, vj] - A[vi, vk] * A[vj, vk]

    sch = Schedule(cholesky)
    if fold:
        sch.annotate(sch.get_block("update"), FOLD, fold)
    return sch


def sums_along_rows(kind: str, step: int) -> PrimFunc:
    text = f"""
    @T.prim_func
    def main(A: T.Buffer((64, {64 * step})), S: T.Buffer((64,))):
        for i in range(8):
            for lane in T.vectorized(8):
                for j in {kind}(64):
                    with T.block("s"):
                        v = T.axis.spatial(64, i * 8 + lane)
                        w = T.axis.opaque(64, j)
                        S[v] = S[v] + A[v, w * {step}]
    """
    return parse(text)


@pytest.mark.parametrize("kind", ["range", "T.unroll"])
@pytest.mark.parametrize("step", [1, 2])
def test_lanes_that_walk_along_memory_load_several_steps_at_once(kind, step):
    """Lanes take a load each, but half of it where a serial loop moves them by one element."""
    found, walks = machine(sums_along_rows(kind, step)), kind == "range" and step == 1
    assert (found["block.gathers"] == 0.0) is walks
    loads = 2.0 ** found["loads"] * (1 if kind == "range" else 64)
    every = 2.0 ** machine(sums_along_rows("range", 2))["loads"]
    assert loads < 0.75 * every if walks else loads >= every


def test_lines_that_lanes_walk_along_come_once():
    """All lanes of a step fall into one set of the cache, but whole lines are loaded at once."""

    def sums(step):
        return machine(parse(f"""
        @T.prim_func
        def main(A: T.Buffer((256, {1024 * step})), S: T.Buffer((256,))):
            for i in range(16):
                for j in range(1024):
                    for lane in T.vectorized(16):
                        with T.block("s"):
                            v = T.axis.spatial(256, i * 16 + lane)
                            w = T.axis.opaque(1024, j)
                            S[v] = S[v] + A[v, w * {step}]
        """))  # fmt: skip

    assert sums(1)["l1_l2"] <= sums(1)["l2_l3"] < sums(2)["l1_l2"] - 2.0


def test_a_fold_counts_where_the_operands_lie_in_the_buffer_of_the_result():
    scalar, folded = (machine(update_in_place(fold).mod) for fold in (0, 16))
    assert scalar["block.fold"] == 0.0 and folded["block.fold"] > 4.0
    assert folded["compute"] < scalar["compute"] - 2.0


def test_a_fold_counts_around_unrolled_rows():
    """Rows of a block of a Cholesky factorization share an operand, each with lanes of its own."""

    @T.prim_func
    def rows(A: T.Buffer((64, 64), "float32"), S: T.Buffer((64,), "float32")):
        for i, k, r in T.grid(16, 64, 4):
            with T.block("update"):
                vi = T.axis.spatial(64, i * 4 + r)
                vk = T.axis.reduce(64, k)
                S[vi] = S[vi] - A[vi, vk] * A[0, vk]

    def found(fold, unrolled=True):
        sch = Schedule(rows)
        block = sch.get_block("update")
        if fold:
            sch.annotate(block, FOLD, fold)
        if unrolled:
            sch.unroll(sch.get_loops(block)[-1])
        return machine(sch.mod)

    scalar, folded, inside = found(0), found(8), found(8, unrolled=False)
    assert folded["block.fold"] == pytest.approx(np.log2(9)) and inside["block.fold"] == 0.0
    assert folded["block.accumulators"] == 2.0  # four rows
    assert folded["compute"] < scalar["compute"] - 2.9


def rows_of(distance: int):
    """Rows that are computed from the element at a distance in the same row."""

    @T.prim_func
    def program(A: T.Buffer((64, 64), "float32")):
        for i, j in T.grid(64, 63):
            with T.block("A"):
                vi = T.axis.spatial(64, i)
                vj = T.axis.opaque(63, j)
                A[vi, vj + 1] = A[vi, vj + 1 - distance] * T.float32(2) + T.float32(1)

    return program


def test_only_results_of_the_iteration_before_are_waited_for():
    waits, updates = machine(rows_of(1)), machine(rows_of(0))
    assert waits["compute"] == pytest.approx(updates["compute"] + 3.0, abs=0.02)  # 4 for 1/2 cycle


def table(value: str, kind: str = "int32"):
    """Rows of a table, each element computed from three neighbours."""
    text = f"""
@T.prim_func
def main(A: T.Buffer((65, 65), "{kind}"), B: T.Buffer((64, 64), "{kind}")):
    for i, j in T.grid(64, 64):
        with T.block("A"):
            vi = T.axis.opaque(64, i)
            vj = T.axis.opaque(64, j)
            {value}
"""
    return parse(text)


def test_a_wait_is_as_long_as_the_operations_on_the_way():
    add, larger = "A[vi + 1, vj] + B[vi, vj]", "T.max(A[vi + 1, vj], A[vi, vj + 1] + B[vi, vj] * 3)"

    def compute(value, kind="int32"):
        sums = work(table(f"A[vi + 1, vj + 1] = {add}", kind), TARGET)
        mod = table(f"A[vi + 1, vj + 1] = {value}", kind)
        values = features(mod, TARGET, sums)[FEATURE_NAMES.index("machine.compute")]
        return 2.0 ** float(values)

    floats = compute(add, "float32")
    assert floats == pytest.approx(2 * compute(larger, "float32"), rel=0.01)
    assert compute("A[vi + 1, vj] * B[vi, vj] + B[vi, vj]", "float32") == floats  # a multiply-add
    assert compute(f"{add} + A[vi, vj]", "float32") == pytest.approx(2 * floats, rel=0.01)
    assert floats == pytest.approx(4 * compute(add), rel=0.01)  # integers need one cycle


def test_sums_along_one_loop_wait_at_the_same_time():
    """Four sums beside each other: 4 cycles for a step of all, by two additions in a cycle."""

    def total(sums):
        stores = "".join(
            f"""
        with T.block("S{n}"):
            v = T.axis.opaque(512, k)
            S[{n}] = S[{n}] + A[v, {n}]"""
            for n in range(sums)
        )
        text = f"""
@T.prim_func
def main(A: T.Buffer((512, 16)), S: T.Buffer((16,))):
    for k in range(512):{stores}
"""
        return 2.0 ** machine(parse(text), work=1.0)["compute"]

    assert total(4) == pytest.approx(total(1), rel=0.01)
    assert total(16) == pytest.approx(2 * total(1), rel=0.01)


def test_steps_of_a_loop_run_while_its_sums_wait():
    """A sum of floats waits 4 cycles, in which the step of the loop runs; a copy waits for none."""

    def steps(value):
        text = f"""
@T.prim_func
def main(A: T.Buffer((512,)), S: T.Buffer((512,))):
    for k in range(512):
        with T.block("S"):
            v = T.axis.opaque(512, k)
            {value}
"""
        return 2.0 ** machine(parse(text), work=512.0)["loop_steps"]

    assert steps("S[v] = A[v] + T.float32(1)") == pytest.approx(4.0, rel=0.01)
    assert steps("S[0] = S[0] + A[v]") == pytest.approx(0.0, abs=0.01)
    assert steps("S[0] = T.max(S[0], A[v])") == pytest.approx(1.0, rel=0.01)  # waits 2 cycles


@pytest.mark.parametrize("end", ["i + 1", "E[i]"])
def test_each_run_of_a_loop_whose_extent_changes_costs_its_ends(end):
    """Each of the 128 rows begins a loop; an extent that stays costs nothing."""

    def steps(end):
        text = f"""
@T.prim_func
def main(A: T.Buffer((128, 128)), E: T.Buffer((128,), "int32")):
    for i in range(128):
        for j in range({end}):
            A[i, j] = A[i, j] * T.float32(2)
"""
        return (2.0 ** machine(parse(text), work=2e4)["loop_steps"] - 1e-3) * (1e4 + 1)

    mean = 64 if end == "E[i]" else 65  # of an extent without bounds, and of 1 to 128
    assert steps(end) == pytest.approx(steps(mean) + RAGGED * 128, rel=0.01)


def test_ends_are_computed_once_for_all_stores_of_a_loop():
    def steps(stores):
        lines = "".join(f"            {x}[i, j] = T.float32(2)\n" for x in stores)
        text = f"""
@T.prim_func
def main(A: T.Buffer((128, 128)), B: T.Buffer((128, 128)), C: T.Buffer((128, 128))):
    for i in range(128):
        for j in range(i + 1):
{lines}"""
        return machine(parse(text), work=2e4)["loop_steps"]

    assert steps("A") == pytest.approx(steps("ABC"), abs=1e-4)


def test_a_sum_of_integers_waits_a_quarter_as_long():
    """One accumulator: 4 cycles for each sum of floats, 1 for each sum of integers."""

    def total(kind, update):
        @T.prim_func
        def total(A: T.Buffer((512,), kind), B: T.Buffer((1,), kind)):
            for k in range(512):
                with T.block("B"):
                    vk = T.axis.opaque(512, k)
                    B[0] = update(B[0], A[vk])

        return machine(total, work=1.0)["compute"]

    floats = total("float32", lambda b, a: b + a)
    assert floats - total("int32", lambda b, a: b + a) == pytest.approx(2.0, abs=0.01)
    assert floats - total("int32", lambda b, a: b * 3 + a) == pytest.approx(0.0, abs=0.01)


@pytest.mark.parametrize(
    "simple",
    [
        lambda a: T.bitwise_xor(a, T.uint32(7)),
        lambda a: T.shift_right(a, T.uint32(7)),
        T.popcount,
    ],
)
def test_operations_on_bits_cost_as_much_as_a_sum(simple):
    def cost(update):
        @T.prim_func
        def chain(A: T.Buffer((512,), "uint32"), B: T.Buffer((1,), "uint32")):
            for k in range(512):
                with T.block("B"):
                    vk = T.axis.opaque(512, k)
                    B[0] = update(B[0]) + A[vk]

        return machine(chain, work=1.0)["compute"]

    assert cost(simple) == pytest.approx(cost(lambda a: a + T.uint32(7)), abs=0.01)


def test_a_step_of_a_loop_counts_once_for_all_stores_of_its_body():
    @T.prim_func
    def one(A: T.Buffer((512,)), B: T.Buffer((512,))):
        for k in range(512):
            B[k] = A[k] + 1.0

    @T.prim_func
    def two(A: T.Buffer((512,)), B: T.Buffer((512,)), C: T.Buffer((512,))):
        for k in range(512):
            B[k] = A[k] + 1.0
            C[k] = A[k] + 2.0

    steps = [machine(func, work=1.0)["loop_steps"] for func in (one, two)]
    assert steps[0] == steps[1]


@pytest.mark.parametrize(("every", "line"), [(1, 4), (2, 8), (16, 64), (32, 64)])
def test_elements_less_than_a_line_apart_share_lines(every, line):
    """Of the elements of a column, each takes its share of a line of 64 bytes."""

    @T.prim_func
    def column(A: T.Buffer((4096, every)), B: T.Buffer((4096,))):
        for k in range(4096):
            B[k] = A[k, 0]

    nests = _rows(IRModule.of(column), TARGET.machine_model())[1]
    read = next(move for move in nests[0].outside if move.access.buffer.name == "A")
    assert read.lines(1) == pytest.approx(4096 * line / 64, abs=1)


def test_one_of_two_branches_runs():
    store = "A[vi + 1, vj + 1] = B[vi, vj]"
    half = table(f"""if B[vi, vj] < 3:
                {store} + 1
            else:
                {store} - 1""")
    always = f"""if B[vi, vj] < 3:
                {store} + 1"""
    for what in ("compute", "loads", "loop_steps"):
        one, both = (machine(mod, work=1000.0) for mod in (table(always), half))
        assert one[what] == pytest.approx(both[what], abs=0.01), what


def test_values_bound_before_a_store_cost_their_operations_and_loads():
    bound = """x: T.int32 = A[vi, 64 - vj] * 3
            y: T.int32 = x * x + x
            A[vi, vj] = B[vi, vj] + y"""
    written_out = "A[vi, vj] = B[vi, vj] + A[vi, 64 - vj] * 3"
    plain, lets, inline = (
        machine(table(text), work=1000.0) for text in ("A[vi, vj] = B[vi, vj]", bound, written_out)
    )
    assert lets["loads"] == pytest.approx(inline["loads"]) and lets["loads"] > plain["loads"]
    assert lets["l1_l2"] == pytest.approx(inline["l1_l2"])
    assert features(table(bound), TARGET)[FEATURE_NAMES.index("sum.int_mul")] > 0


def test_a_test_of_data_costs_its_operations_and_loads():
    value = "A[vi, vj] = 1"
    tested = f"""if A[vi, 64 - vj] * B[vi, vj] > 3:
                {value}"""
    plain, both = (machine(table(text), work=1000.0) for text in (value, tested))
    assert both["loads"] > plain["loads"] and both["compute"] > plain["compute"]


def test_a_bound_index_moves_with_its_loops():
    bound = """place: T.int32 = 63 - vj
            A[vi, place] = B[vi, place]"""
    assert machine(table(bound)) == machine(table("A[vi, 63 - vj] = B[vi, 63 - vj]"))


def products(lanes: int):
    """60 results in vectors of `lanes`, each vector a chain of 60 unrolled additions."""

    @T.prim_func
    def program(A: T.Buffer((60, 64), "float32"), B: T.Buffer((60,), "float32"),
                C: T.Buffer((64,), "float32")):  # fmt: skip
        for i, k in T.grid(64, 60):
            with T.block("C"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    C[vi] = T.float32(0)
                C[vi] = C[vi] + A[vk, vi] * B[vk]

    sch = Schedule(program)
    i, k = sch.get_loops(sch.get_block("C"))
    outer, inner = sch.split(i, [None, lanes])
    sch.reorder(outer, k, inner)
    sch.vectorize(inner)
    for loop in (k, outer):
        sch.unroll(loop)
    return sch.mod


def test_chains_far_from_each_other_do_not_run_at_once():
    """Eight chains of one vector each, or two chains of four vectors."""
    eight, two = machine(products(8)), machine(products(32))
    assert eight["block.accumulators"] == two["block.accumulators"]
    assert eight["block.compute"] > two["block.compute"] + 0.5


def test_prefetch_distance_is_a_feature():
    assert machine(row_sums({AHEAD: 256}))["block.ahead"] == pytest.approx(np.log2(257))
    assert machine(row_sums({AHEAD: 0}))["block.ahead"] == 0.0


def test_prefetched_rows_cost_no_page_or_cache_set_conflicts():
    """The rows of B, apart by a page; the store, which moves along too, is not asked for."""
    far, near = (Matmul(1024) for _ in range(2))
    near.update = evolve(near.update, annotations=FrozenMap({AHEAD: 8192}))
    far, near = (machine(m.program((4, 16, 4, 4), (4, 4, 4, 16), (8, 128))) for m in (far, near))
    assert near["block.near_pages"] < far["block.near_pages"] - 1
    assert near["block.crowd"] < far["block.crowd"] - 0.5
    assert near["block.runs"] == far["block.runs"]  # a block of one step has one row of B


def test_rows_nearly_a_page_apart_do_not_stay_in_the_cache():
    """Rows of 1,026 columns begin 8 bytes behind the cache set of the row before; of 1,016 columns,
    32 bytes before the set, so that few rows meet."""

    def rows_held(columns: int) -> float:
        @T.prim_func
        def copy(A: T.Buffer((64, columns), "float32"), B: T.Buffer((64, columns), "float32")):
            for i, j in T.grid(4, 32):
                for r in T.unroll(16):
                    for v in T.vectorized(16):
                        with T.block("B"):
                            vi = T.axis.spatial(64, i * 16 + r)
                            vj = T.axis.spatial(512, j * 16 + v)
                            B[vi, vj] = A[vi, vj]

        return machine(IRModule.of(copy))["block.near_runs"]

    assert [rows_held(n) for n in (1024, 1026, 1016, 1000)] == [1.0, 1.0, 5.0, 5.0]


def test_conditions_around_a_store_are_counted():
    guarded = machine(row_sums(kind="u", guard=lambda k: compare(LT, k, as_expr(60))))
    assert (guarded["block.guards"], machine(row_sums())["block.guards"]) == (1.0, 0.0)


@pytest.mark.parametrize("start", [0, 40])
def test_a_condition_over_a_loop_of_one_iteration_is_counted(start):
    """12 rows of a tile of 32 are stored; the loop of one iteration gives a constant."""

    def rows(row: str) -> IRModule:
        text = f"""
@T.prim_func
def main(A: T.Buffer((20, 16), "float32"), B: T.Buffer((20, 16), "float32")):
    for u in T.serial({start}, {start + 1}):
        for i, v in T.grid(32, 16):
            with T.block("B"):
                vi, vj = T.axis.spatial(20, {row}), T.axis.spatial(16, v)
                T.where({row} < 12)
                B[vi, vj] = A[vi, vj]
"""
        return IRModule.of(parse(text))

    with_unit, without = summarize(rows(f"u * 32 + i - {32 * start}")), summarize(rows("i"))
    (first,), (second,) = with_unit.stores, without.stores
    assert first.notes.tests == second.notes.tests != ()


def test_a_condition_counts_where_the_lowering_tests_it():
    """A condition on rows runs once for each row, not for each of its vectors."""

    @T.prim_func
    def rows(A: T.Buffer((64, 256), "float32"), B: T.Buffer((64, 256), "float32")):
        for i, j in T.grid(64, 16):
            for v in T.vectorized(16):
                with T.block("B"):
                    vi, vj = T.axis.spatial(64, i), T.axis.spatial(256, j * 16 + v)
                    T.where(i < 60)
                    B[vi, vj] = A[vi, vj]

    assert machine(IRModule.of(rows))["block.guards"] == 1 / 16


def test_lanes_up_to_a_limit_cost_two_loads():
    """The last vector of 100 columns ends at a limit; rows that are clamped, too, cost nothing."""

    def program(column: str, row: str = "vi") -> IRModule:
        text = f"""
@T.prim_func
def main(A: T.Buffer((64, 128), "float32"), B: T.Buffer((64, 16), "float32")):
    for i in range(64):
        for v in T.vectorized(16):
            with T.block("B"):
                vi, vj = T.axis.remap("SS", [i, v])
                B[vi, vj] = A[{row}, {column}] * T.float32(2)
"""
        return IRModule.of(parse(text))

    free, ends = machine(program("vj")), machine(program("T.min(vj, 9)"))
    rows = machine(program("T.min(vj, 9)", "T.min(vi, 60)"))
    assert free["block.gathers"] == ends["block.gathers"] == 0.0
    assert ends["loads"] > free["loads"] + 0.4 and rows["loads"] == ends["loads"]
    assert machine(program("T.min(2 * vj, 9)"))["block.gathers"] == 1.0
    assert machine(program("(vj + 1) % 16"))["loads"] == ends["loads"]  # neighbours on a ring
    assert machine(program("vj % 16"))["loads"] == free["loads"]


def test_the_core_with_the_clamped_vectors_is_waited_for():
    """One of eight parts of the columns is clamped: a quarter of what one of two cores runs."""

    def gathers(parts: str, cores: int) -> float:
        text = f"""
@T.prim_func
def main(A: T.Buffer((64, 300), "float32"), B: T.Buffer((64, 128), "float32")):
    for j in T.{parts}(8):
        for i in range(64):
            for v in T.vectorized(16):
                with T.block("B"):
                    vi, vj = T.axis.spatial(64, i), T.axis.spatial(128, j * 16 + v)
                    B[vi, vj] = A[vi, T.min(vj, 120) * 2]
"""
        target = Target.of(f"llvm -mcpu=skylake-avx512 -num-cores={cores}")
        found = machine(IRModule.of(parse(text)), target)
        return 2.0 ** found["loads"] * found["cores"]  # the loads of all cores

    assert gathers("parallel", 8) > 2 * gathers("parallel", 2)
    assert gathers("parallel", 2) > 1.2 * gathers("serial", 1)


def test_results_are_held_while_the_loops_around_do_not_move_them():
    """Steps of k0, j2 excepted: the block of 4 x 16 stays for 8 steps of the inner reduction."""
    assert machine(program())["block.held"] == 3.0
    assert machine(program(tj=(1, 2, 1, 32)))["block.held"] == 6.0  # and for the 8 around them


def test_columns_of_a_wide_matrix_lie_in_many_pages():
    """What the loops touch that fit into a cache: the rows of B, apart by a page from 1,024 on."""
    tiles = ((2, 8, 1, 4), (8, 2, 1, 4), (8, 8))
    near, wide = (machine(Matmul(n).program(*tiles)) for n in (64, 1024))
    assert near["block.near_pages"] < wide["block.near_pages"]
    assert wide["block.crowd"] > near["block.crowd"] + 0.5
    rows, results = 4 + 1, 0  # the results are in registers
    assert machine(program())["block.runs"] == pytest.approx(np.log2(rows + results))


def columns(rows: int, width: int) -> IRModule:
    """Sums of `rows` neighbouring rows, one column after the other."""

    @T.prim_func
    def sums(A: T.Buffer((64, width), "float32"), B: T.Buffer((64,), "float32")):
        for i, j, r in T.grid(64 // rows, 64, rows):
            with T.block("B"):
                vi = T.axis.spatial(64, i * rows + r)
                vj = T.axis.opaque(64, j)
                B[vi] = B[vi] + A[vi, vj]

    sch = Schedule(sums)
    sch.unroll(sch.get_loops("B")[-1])
    return sch.mod


def test_rows_a_page_apart_push_each_other_out_of_the_nearest_cache():
    """Sixteen lines of one set of eight: each number of a line is loaded from the next cache."""
    near, far = (machine(columns(16, width))["l1_l2"] for width in (1024 + 16, 1024))
    assert far > near + 2.5
    few = [machine(columns(4, width))["l1_l2"] for width in (1024 + 16, 1024)]
    assert few[1] == pytest.approx(few[0], abs=0.1)


def copied_squares(value: str, width: int = 72, rows: int = 8) -> IRModule:
    """Tiles of a matrix with their rows as lanes."""
    text = f"""
@T.prim_func
def main(A: T.Buffer((64, {width})), B: T.Buffer((8, {width}, 8))):
    for r in range(8):
        for c in range({width // rows}):
            for i in T.unroll({rows}):
                for j in T.vectorized(8):
                    with T.block("B"):
                        vr, vj = T.axis.spatial(8, r), T.axis.spatial(8, j)
                        vi = T.axis.spatial({width}, c * {rows} + i)
                        B[vr, vi, vj] = {value}
"""
    return IRModule.of(parse(text))


def test_a_transposition_loads_rows_and_exchanges_them():
    """A vector of 8 lanes takes a load and three exchanges; its own store is one of five."""
    square, other = (machine(copied_squares("A[vr * 8 + vj, vi]", rows=n)) for n in (8, 4))
    sums = machine(copied_squares("A[vr * 8 + vj, vi] + T.float32(1)"))
    assert square["block.gathers"] == 0.0 and other["block.gathers"] == 1.0
    assert sums["block.gathers"] == 1.0
    assert 2.0 ** (square["loads"] - other["loads"]) == pytest.approx(5 / 9, rel=0.01)


def test_rows_of_a_transposition_do_not_push_each_other_out():
    """Eight rows that lie a page apart fill a set of the cache, but each is loaded once."""

    def near(value):
        table = machine(copied_squares(value, 1024), work=2.0**16)
        return 2.0 ** table["l1_l2"]

    assert near("A[vr * 8 + vj, vi] + T.float32(1)") > 3 * near("A[vr * 8 + vj, vi]")


def strips(width: int) -> IRModule:
    """A copy of a matrix, a strip of columns after the other."""

    @T.prim_func
    def copy(A: T.Buffer((2048, 4096), "float32"), B: T.Buffer((2048, 4096), "float32")):
        for s, i, j in T.grid(4096 // width, 2048, width):
            with T.block("B"):
                vi = T.axis.spatial(2048, i)
                vj = T.axis.spatial(4096, s * width + j)
                B[vi, vj] = A[vi, vj]

    return Schedule(copy).mod


def test_pages_are_looked_up_again_where_too_many_lie_between():
    """Narrow strips return to a page after 4,095 others; whole rows stay in a page until its
    end."""
    narrow, wide, whole = (machine(strips(width))["block.pages"] for width in (16, 64, 4096))
    assert narrow == pytest.approx(wide + 2.0, abs=0.1)
    assert whole < narrow - 5.0


def stages(first: str, second: str) -> IRModule:
    """A table that one statement writes and another reads, each divided along rows or columns."""
    loops = {"rows": "for i in T.parallel(64):\n        for j in range(1024)",
             "columns": "for j in T.parallel(1024):\n        for i in range(64)",
             "serial": "for i in range(64):\n        for j in range(1024)"}  # fmt: skip
    return parse(f"""
@T.prim_func
def main(A: T.Buffer((64, 1024), "float32"), C: T.Buffer((64, 1024), "float32")):
    B = T.alloc_buffer((64, 1024), "float32")
    {loops[first]}:
            with T.block("B"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi, vj] = A[vi, vj] * T.float32(2)
    {loops[second]}:
            with T.block("C"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = B[vi, vj] + T.float32(1)
""")


def test_data_that_another_core_wrote_comes_from_its_cache():
    def far(first: str, second: str) -> float:
        found = machine(stages(first, second), work=1000.0)
        return 2.0 ** found["l2_l3"] * 501.0  # cycles

    lines = 64 * 1024 * 4 // 64
    moved = lines / 2 * TARGET.machine_model().transfer / 2  # half of them, by two cores
    own = far("rows", "rows")
    assert far("columns", "columns") < own + 0.1 * moved
    assert far("rows", "columns") == pytest.approx(own + moved, rel=0.05)
    assert far("columns", "rows") == pytest.approx(own + moved, rel=0.05)
    assert far("serial", "rows") > own + 0.9 * moved


def test_short_parts_of_rows_bring_the_lines_of_the_other_core():
    """Two cores divide rows of 128 or 4,096 bytes; processors fetch lines in pairs."""

    def memory(width: int, parts: str) -> float:
        half = width // 2
        sizes = {"rows": f"256, {width}", "columns": f"512, {half}"}[parts]
        at = {"rows": ("t * 256 + i", "j"), "columns": ("i", f"t * {half} + j")}[parts]
        mod = parse(f"""
@T.prim_func
def main(A: T.Buffer((512, {width}), "float32"), C: T.Buffer((512, {width}), "float32")):
    for t in T.parallel(2):
        for i, j in T.grid({sizes}):
            with T.block("C"):
                vi, vj = T.axis.spatial(512, {at[0]}), T.axis.spatial({width}, {at[1]})
                C[vi, vj] = A[vi, vj] + T.float32(1)
""")
        return 2.0 ** machine(mod, work=1000.0)["l3_memory"]

    assert memory(32, "columns") == pytest.approx(2 * memory(32, "rows"), rel=0.01)
    assert memory(1024, "columns") == pytest.approx(memory(1024, "rows") * (1 + 1 / 32), rel=0.01)


def test_rows_that_a_step_of_time_reads_were_written_by_the_step_before():
    def steps(kind: str, loop: str = "j") -> IRModule:
        return parse(f"""
@T.prim_func
def main(A: T.Buffer((64, 64), "float32"), S: T.Buffer((64,), "float32")):
    for t in range(64):
        for i in range(64):
            with T.block("S"):
                vt, vi = T.axis.remap("SS", [t, i])
                S[vi] = A[vi, vt] * T.float32(2)
        for {loop} in T.{kind}(64):
            for {"i" if loop == "j" else "j"} in range(64):
                with T.block("A"):
                    vi, vj = T.axis.opaque(64, i), T.axis.opaque(64, j)
                    A[vi, vj] = S[vi]
""")

    def far(mod: IRModule) -> float:
        return 2.0 ** machine(mod, work=1000.0)["l2_l3"]

    assert far(steps("parallel")) > 2 * far(steps("serial"))


def test_a_core_reads_no_more_from_another_than_that_one_wrote():
    """Core 0 writes row 0, then each core adds to rows of its own."""

    def far(border: str) -> float:
        mod = parse(f"""
@T.prim_func
def main(A: T.Buffer((64, 64), "float32")):
    {border}
    for i in T.parallel(64):
        for j in range(64):
            with T.block("A"):
                vi, vj = T.axis.remap("SS", [i, j])
                A[vi, vj] = A[vi, vj] + T.float32(1)
""")
        return 2.0 ** machine(mod, work=1000.0)["l2_l3"] * 501.0

    row = """for k in range(64):
        with T.block("border"):
            vk = T.axis.spatial(64, k)
            A[0, vk] = T.float32(0)"""
    moved = 64 * 4 / 64 / 2 * TARGET.machine_model().transfer  # half of four lines, once a core
    assert far(row) - far("") < 2 * moved


def test_loops_that_are_unrolled_unasked_are_part_of_the_block():
    asked = Matmul(64).program((2, 8, 1, 4), (1, 2, 2, 16), (8, 8), 64)
    assert machine(asked)["block.chain"] == 3.0  # eight steps of the reduction
    assert machine(program())["block.chain"] == 0.0


def staged(rows):
    """A depthwise convolution in tiles of `rows` x 2 x 8, its padding a stage of each tile."""
    sch = Schedule(get("dep").func((1, 16, 16, 16, 3, 1, 1)), seed=0)
    conv, pad = sch.get_block("conv"), sch.get_block("pad")
    _, h, w, c, i, j = sch.get_loops(conv)
    (h0, h1), (w0, w1), (c0, c1) = (
        sch.split(x, [None, n]) for x, n in ((h, rows), (w, 2), (c, 8))
    )  # fmt: skip
    sch.reorder(h0, w0, c0, i, j, h1, w1, c1)
    sch.compute_at(pad, c0, preserve_unit_loops=True)
    sch.unroll(h1)
    sch.unroll(w1)
    sch.vectorize(c1)
    sch.vectorize(sch.get_loops(pad)[-1])
    return sch.mod


def test_a_stage_that_fits_into_registers_costs_no_memory_and_no_loops():
    """4 x 4 vectors of 8 are all 16 registers; 6 x 4 are more, and stay in memory."""
    small, large = machine(staged(2)), machine(staged(4))
    assert small["temporaries"] == pytest.approx(np.log2(1e-3))
    assert large["temporaries"] > small["temporaries"] + 0.5
    assert small["loads"] < large["loads"] - 0.5
    assert small["loop_steps"] < large["loop_steps"] - 2.0


def test_an_instruction_counts_as_what_it_costs():
    """Two calls for each of 4 rows: twice the cycles where each call takes twice as long."""
    lanes = 16
    name = "llvm.x86.avx512.vpdpbusd.512"

    @T.prim_func
    def dots(
        A: T.Buffer((4, 64), "uint8"), B: T.Buffer((64,), "int8"), C: T.Buffer((4, 16), "int32")
    ):
        for i in T.unroll(4):
            with T.block("C"):
                vi = T.axis.spatial(4, i)
                C[vi, T.ramp(0, 1, lanes)] = T.call_llvm_pure_intrin(
                    "int32x16",
                    name,
                    T.call_llvm_pure_intrin(
                        "int32x16",
                        name,
                        C[vi, T.ramp(0, 1, lanes)],
                        A[vi, T.ramp(0, 1, 64)],
                        B[T.ramp(0, 1, 64)],
                    ),
                    A[vi, T.ramp(0, 1, 64)],
                    B[T.ramp(0, 1, 64)],
                )

    target = Target.of("llvm -mcpu=znver4 -num-cores=1")
    model = dataclasses.replace(target.machine_model(), costs={})
    one, two = (
        machine_features(*_rows(IRModule.of(dots), m)[1:], m, 1.0)
        for m in (model, dataclasses.replace(model, costs={name: 2.0}))
    )
    compute = MACHINE_FEATURES.index("block.compute")
    assert two[compute] == pytest.approx(one[compute] + 1, abs=0.01)
    assert one[MACHINE_FEATURES.index("block.lanes")] == 4.0


def test_instructions_with_the_same_operands_run_once():
    """int8 times int8 needs the sums of B's columns, which the rows of a block share."""

    @T.prim_func
    def product(
        A: T.Buffer((8, 4), "int8"), B: T.Buffer((32, 4), "int8"), C: T.Buffer((8, 32), "int32")
    ):
        for r in T.unroll(8):
            for c in T.unroll(2):
                for i, k in T.grid(16, 4):
                    with T.block("C"):
                        vr, vc = T.axis.spatial(8, r), T.axis.spatial(32, c * 16 + i)
                        vk = T.axis.reduce(4, k)
                        C[vr, vc] = C[vr, vc] + T.cast(A[vr, vk], "int32") * T.cast(
                            B[vc, vk], "int32"
                        )

    sch = Schedule(product)
    sch.tensorize(sch.get_loops(sch.get_block("C"))[2], "x86.vnni.dot_16x4_i8i8i32")
    # 16 products and their subtractions, and 2 sums: one for each vector of B
    found = machine(sch.mod, Target.of("llvm -mcpu=znver4 -num-cores=2"))
    assert found["block.size"] == pytest.approx(np.log2(16 + 8 + 2 + 1))
