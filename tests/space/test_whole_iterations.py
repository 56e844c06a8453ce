"""whole_iterations: iterations with memory of their own run in vector lanes."""

from __future__ import annotations

import numpy as np
import pytest
from oracle import check_numbers
from space.candidates import TARGET, draw

from metasched.autoschedule import autoschedule
from metasched.ir.func import PrimFunc
from metasched.ir.stmt import For, ForKind, While
from metasched.ir.visit import walk_stmts
from metasched.kinds import default_modules, default_trace
from metasched.lower.pipeline import lower
from metasched.runtime.build import build
from metasched.schedule.schedule import Schedule
from metasched.script import tir as T
from metasched.space.generate import SpaceGenerator

N, M = 12, 140


@T.prim_func
def median(A: T.Buffer((N, M), "uint8"), B: T.Buffer((N, M), "uint8")):
    for y in range(1, N - 1):
        for x in range(1, M - 1):
            v = T.alloc_buffer((9,), "uint8")
            for dy in range(3):
                for dx in range(3):
                    v[dy * 3 + dx] = A[y - 1 + dy, x - 1 + dx]
            for _ in range(5):
                for j in range(8):
                    t = T.min(v[j], v[j + 1])
                    v[j + 1] = T.max(v[j], v[j + 1])
                    v[j] = t
            B[y, x] = v[4]


@T.prim_func
def random_walk(seed: T.Buffer((M,), "uint32"), hits: T.Buffer((M,), "int32")):
    for i in range(M):
        s = seed[i]
        c = T.int32(0)
        for _ in range(24):
            s = s ^ (s << 13)
            s = s ^ (s >> 17)
            s = s ^ (s << 5)
            if s < T.uint32(1 << 30):
                c += 1
        hits[i] = c


@T.prim_func
def counted(seed: T.Buffer((M,), "uint32"), hits: T.Buffer((M,), "int32"),
            total: T.Buffer((1,), "int32")):  # fmt: skip
    """The sum of all lanes needs the order of the iterations."""
    total[0] = 0
    for i in range(M):
        s = seed[i]
        c = T.int32(0)
        for _ in range(24):
            s = s * T.uint32(1664525) + T.uint32(1013904223)
            if s < T.uint32(1 << 30):
                c += 1
        hits[i] = c
        total[0] += c * total[0] + 1


@T.prim_func
def lengths(A: T.Buffer((M, 16), "float32"), n: T.Buffer((M,), "int32"),
            B: T.Buffer((M,), "float32")):  # fmt: skip
    """The inner loop has another end in each lane."""
    for i in range(M):
        s = T.float32(1)
        t = T.float32(0)
        for k in range(n[i]):
            s = s * 0.5 + A[i, k]
            t = t + s * s
        B[i] = t


@T.prim_func
def sampled(start: T.Buffer((N + 1,), "int32"), col: T.Buffer((300,), "int32"),
            A: T.Buffer((N, 40)), B: T.Buffer((M, 40)), C: T.Buffer((300,))):  # fmt: skip
    """Each lane walks along a row of B of its own, and the sums keep their order."""
    for i in range(N):
        for p in range(start[i], start[i + 1]):
            s = T.float32(0)
            for k in range(40):
                s += A[i, k] * B[col[p], k]
            C[p] = s


@T.prim_func
def distances(A: T.Buffer((N, 30)), B: T.Buffer((M, 30)), C: T.Buffer((N, M))):
    for i in range(N):
        for j in range(M):
            s = T.float32(0)
            for k in range(30):
                s += (A[i, k] - B[j, k]) * (A[i, k] - B[j, k])
            C[i, j] = T.sqrt(s)


@T.prim_func
def normalized(A: T.Buffer((M, 29)), w: T.Buffer((29,)), B: T.Buffer((M, 29))):
    """The sums of rows run in lanes; the results lie along the rows."""
    for i in range(M):
        m = T.float32(0)
        for j in range(29):
            m += A[i, j]
        m = m / T.float32(29)
        v = T.float32(0)
        for j in range(29):
            v += (A[i, j] - m) * (A[i, j] - m)
        r = T.float32(1) / T.sqrt(v + T.float32(1e-5))
        for j in range(29):
            B[i, j] = (A[i, j] - m) * r * w[j]


@T.prim_func
def grouped(A: T.Buffer((3, 20, 2, 21), "float64"), B: T.Buffer((3, 20, 2, 21), "float64")):
    """Below an outer loop; two sums in one loop share what they load."""
    for b in range(3):
        for g in range(20):
            s = T.float64(0)
            q = T.float64(0)
            for c in range(2):
                for h in range(21):
                    s += A[b, g, c, h]
                    q += A[b, g, c, h] * A[b, g, c, h]
            m = s / 42.0
            r = 1.0 / T.sqrt(q / 42.0 - m * m + 1e-5)
            for c in range(2):
                for h in range(21):
                    B[b, g, c, h] = (A[b, g, c, h] - m) * r


@T.prim_func
def centred_at_run_time(a: T.handle, c: T.handle):
    m = T.int64()
    A = T.match_buffer(a, (37, m))
    B = T.match_buffer(c, (37, m))
    for i in range(37):
        s = T.float32(0)
        q = T.float32(0)
        for j in range(m):
            s += A[i, j]
            q += A[i, j] * A[i, j]
        for j in range(m):
            B[i, j] = (A[i, j] + s) * q


@T.prim_func
def shrinking(A: T.Buffer((M + 4,), "float32"), B: T.Buffer((M,), "float32")):
    """A bubble sort of five neighbours: the inner loop has an end of its own in each pass."""
    for x in range(M):
        v = T.alloc_buffer((5,), "float32")
        for k in range(5):
            v[k] = A[x + k]
        for p in range(4):
            for q in range(4 - p):
                t = T.min(v[q], v[q + 1])
                v[q + 1] = T.max(v[q], v[q + 1])
                v[q] = t
        B[x] = v[2] + v[4]


@T.prim_func
def tridiagonal(A: T.Buffer((30, M)), D: T.Buffer((30, M)), X: T.Buffer((30, M))):
    """One system in each lane. The two parts of `up` are written by two statements."""
    for s in range(M):
        up = T.alloc_buffer((30,), "float32")
        up[0] = A[0, s] * D[0, s]
        for i in range(1, 30):
            up[i] = T.max(D[i, s] - up[i - 1], A[i, s])
        X[29, s] = up[29]
        for i in range(29):
            X[28 - i, s] = T.min(up[28 - i] - X[29 - i, s], A[28 - i, s])


@T.prim_func
def tridiagonal_rows(A: T.Buffer((M, 30)), D: T.Buffer((M, 30)), X: T.Buffer((M, 30))):
    """The same, and each system is a row."""
    for s in range(M):
        up = T.alloc_buffer((30,), "float32")
        up[0] = A[s, 0] * D[s, 0]
        for i in range(1, 30):
            up[i] = T.max(D[s, i] - up[i - 1], A[s, i])
        X[s, 29] = up[29]
        for i in range(29):
            X[s, 28 - i] = T.min(up[28 - i] - X[s, 29 - i], A[s, 28 - i])


@T.prim_func
def smoothed(A: T.Buffer((M, 40), "float64"), B: T.Buffer((M, 40), "float64")):
    """Vectors along the rows are faster: no step waits for the step before."""
    for s in range(M):
        for i in range(1, 39):
            B[s, i] = A[s, i - 1] + A[s, i] * 2.0
        for i in range(1, 39):
            A[s, i] = B[s, i] * 0.5


@T.prim_func
def matches(A: T.Buffer((M + 3,), "int32"), w: T.Buffer((4,), "int32"),
            found: T.Buffer((2,), "int32")):  # fmt: skip
    """Loops that their data end, with updates of all iterations behind them."""
    for i in range(M):
        k = 0
        while k < 4 and A[i + k] > w[k]:
            k += 1
        if k > 1:
            found[0] += 1
        found[1] = T.max(found[1], k + i)


@T.prim_func
def filtered(z: T.Buffer((32, M), "int32"), x: T.Buffer((M, 2), "int32"),
             P: T.Buffer((M,), "int32"), out: T.Buffer((32, M), "int32")):  # fmt: skip
    """Each signal has a state and a gain, which are parameters."""
    for b in range(M):
        for t in range(32):
            p = P[b] + 5
            r = z[t, b] - x[b, 0] - x[b, 1]
            x[b, 0] = x[b, 0] + x[b, 1] + ((p * r) >> 4)
            x[b, 1] = x[b, 1] + ((p * r) >> 6)
            P[b] = p & 15
            out[t, b] = x[b, 0]


@T.prim_func
def in_two_stores(z: T.Buffer((32, M), "int32"), x: T.Buffer((M,), "int32"),
                  v: T.Buffer((M,), "int32")):  # fmt: skip
    """Two statements that need each other's last result."""
    for b in range(M):
        for t in range(32):
            x[b] = x[b] + (v[b] >> 1)
            v[b] = (3 * v[b] >> 2) + z[t, b] - x[b]


@T.prim_func
def carried(A: T.Buffer((M,), "float32"), B: T.Buffer((M,), "float32")):
    """An iteration reads what the iteration before it left in s."""
    s = T.float32(0)
    for i in range(M):
        for _ in range(8):
            s = s * 0.5 + A[i]
        B[i] = s


def _lanes(sch: Schedule) -> set[int]:
    """The lanes of vectorized loops that hold other loops or several statements."""
    loops = [s for s in walk_stmts(sch.func.body) if isinstance(s, For)]
    whole = [s for s in loops if s.kind is ForKind.VECTORIZED]
    return {
        int(s.extent.value)
        for s in whole
        if any(isinstance(x, (For, While)) for x in walk_stmts(s.body))
    }  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("func", "lanes"),
    [(median, 64), (random_walk, 16), (counted, 16), (shrinking, 16), (tridiagonal, 16),
     (tridiagonal_rows, 16), (matches, 32), (filtered, 16), (in_two_stores, 16)],
)  # fmt: skip
def test_the_default_schedule_runs_iterations_in_lanes(func: PrimFunc, lanes: int) -> None:
    sch = Schedule(func)
    default_trace(func, TARGET).apply(sch)
    assert _lanes(sch) == {lanes}
    check_numbers(func, sch.mod, compiled=True)


@pytest.mark.parametrize(
    ("func", "base"),
    [(median, 64), (random_walk, 16), (counted, 16), (filtered, 16), (in_two_stores, 16)],
)
def test_the_space_offers_whole_iterations(func: PrimFunc, base: int) -> None:
    generator = SpaceGenerator(default_modules(TARGET))
    found = generator.generate(func, TARGET)
    assert not generator.failures
    (space,) = [s for s in found if any("whole_iterations" in e.values for e in s.entries)]
    seen, kinds = set(), set()
    for seed in range(4):
        sch = draw(func, space, seed)
        seen |= _lanes(sch)
        kinds |= {s.kind for s in walk_stmts(sch.func.body) if isinstance(s, For)}
        check_numbers(func, sch.mod, compiled=True)
    assert seen <= {base, 2 * base, 4 * base} and len(seen) > 1
    assert ForKind.PARALLEL in kinds


def _sparse(func: PrimFunc) -> list[np.ndarray]:
    """Random arrays; rows of 0 to 60 nonzero elements."""
    rng = np.random.default_rng(0)
    found = []
    for buffer in func.params:
        shape = buffer.constant_shape()
        if buffer.name == "start":
            found.append(np.sort(rng.integers(0, 301, shape)).astype("int32"))
        elif buffer.name == "col":
            found.append(rng.integers(0, M, shape).astype("int32"))
        else:
            found.append(rng.standard_normal(shape).astype("float32"))
    return found


@pytest.mark.parametrize("func", [sampled, distances])
def test_lanes_that_walk_along_rows_give_the_bits_of_the_program(func: PrimFunc) -> None:
    given = _sparse(func)
    wanted = [a.copy() for a in given]
    build(func, target="native")(*wanted)
    scheduled = Schedule(func)
    default_trace(func, TARGET).apply(scheduled)
    assert _lanes(scheduled) == {16}
    found = SpaceGenerator(default_modules(TARGET)).generate(func, TARGET)
    (space,) = [s for s in found if any("whole_iterations" in e.values for e in s.entries)]
    for sch in (scheduled, *(draw(func, space, seed) for seed in range(4))):
        got = [a.copy() for a in given]
        build(sch.mod, target="native")(*got)
        np.testing.assert_array_equal(got[-1], wanted[-1])


def _bits(func: PrimFunc, mods: list[Schedule], given: list[np.ndarray]) -> None:
    """Scheduled programs store the bits of the program as written, NaN and infinity too."""
    wanted = [a.copy() for a in given]
    build(func, target="native")(*wanted)
    for sch in mods:
        got = [a.copy() for a in given]
        build(sch.mod, target="native")(*got)
        np.testing.assert_array_equal(got[-1], wanted[-1])


@pytest.mark.parametrize(("func", "lanes"), [(normalized, 16), (grouped, 8)])
def test_statements_that_store_along_rows_get_a_loop_of_their_own(
    func: PrimFunc, lanes: int
) -> None:
    rng = np.random.default_rng(1)
    given = [rng.standard_normal(b.constant_shape()).astype(str(b.dtype)) for b in func.buffers]
    given[0].flat[5], given[0].flat[-40] = np.nan, np.inf
    scheduled = Schedule(func)
    default_trace(func, TARGET).apply(scheduled)
    assert _lanes(scheduled) == {lanes}
    found = SpaceGenerator(default_modules(TARGET)).generate(func, TARGET)
    (space,) = [s for s in found if any("whole_iterations" in e.values for e in s.entries)]
    drawn = [draw(func, space, seed) for seed in range(6)]
    assert any(lanes // 2 in _lanes(sch) for sch in drawn)
    _bits(func, [scheduled, *drawn], given)


@pytest.mark.parametrize("length", [1, 3, 4, 70])
def test_rows_of_run_time_length_are_summed_in_lanes(length: int) -> None:
    scheduled = Schedule(centred_at_run_time)
    default_trace(centred_at_run_time, TARGET).apply(scheduled)
    assert _lanes(scheduled) == {16}
    rng = np.random.default_rng(2)
    given = [rng.standard_normal((37, length)).astype("float32") for _ in range(2)]
    _bits(centred_at_run_time, [scheduled], given)


def test_a_sort_of_loops_with_other_ends_stays_in_registers() -> None:
    sch = Schedule(shrinking)
    default_trace(shrinking, TARGET).apply(sch)
    assert {n.kind for n in sch.state.loops_above(sch.state.block(sch.get_block("v_1")))[2:]} == {
        ForKind.UNROLLED
    }


def test_sums_in_any_order_do_not_walk() -> None:
    """Lanes along the sum need no exchange of registers."""
    func = sampled.with_attr("tir.fast_math", "reassoc")
    sch = Schedule(func)
    default_trace(func, TARGET).apply(sch)
    assert not _lanes(sch)


@pytest.mark.parametrize("func", [lengths, carried, smoothed])
def test_iterations_that_do_not_fit_lanes_stay_apart(func: PrimFunc) -> None:
    sch = Schedule(func)
    default_trace(func, TARGET).apply(sch)
    assert not _lanes(sch)
    check_numbers(func, sch.mod, compiled=True)


@T.prim_func
def lags(X: T.Buffer((3, 200)), R: T.Buffer((3, 64))):
    for c, l in T.grid(3, 64):
        R[c, l] = 0.0
        for n in range(200 - l):
            R[c, l] += X[c, n] * X[c, n + l]


@T.prim_func
def later(X: T.Buffer((3, 100)), R: T.Buffer((3, 64))):
    for c, i in T.grid(3, 64):
        s = T.float32(0)
        for k in range(i + 1):
            s += X[c, k] * X[c, i]
        R[c, i] = s


@T.prim_func
def rows_of_a_triangle(A: T.Buffer((64, 64)), x: T.Buffer((64,)), y: T.Buffer((64,))):
    for i in range(64):
        y[i] = 0.0
        for k in range(i + 1):
            y[i] += A[i, k] * x[k]


@pytest.mark.parametrize("func", [lags, later, rows_of_a_triangle])
def test_sums_of_an_even_triangle_run_in_lanes(func: PrimFunc) -> None:
    """An autocorrelation: lane l adds up one term less than lane l - 1."""
    sch = Schedule(func)
    default_trace(func, TARGET).apply(sch)
    assert _lanes(sch) and "any_lane" not in lower(sch.func, TARGET).script()
    check_numbers(func, sch.mod, compiled=True)
    check_numbers(func, autoschedule(func, TARGET).mod, compiled=True)


@T.prim_func
def scored(A: T.Buffer((256, 384)), seed: T.uint32, B: T.Buffer((256, 384))):
    """Each row is computed in vectors along the row, and added up in vectors."""
    for i in range(256):
        row = T.alloc_buffer((384,))
        s = T.float32(0)
        for j in range(384):
            h = T.uint32(i * 384 + j) * T.uint32(2654435761) + seed
            row[j] = T.if_then_else(h < T.uint32(3435973836), A[i, j], 0.0)
            s += row[j]
        for j in range(384):
            B[i, j] = row[j] - s / 384


def test_rows_whose_statements_have_vectors_of_their_own_are_not_turned() -> None:
    found = SpaceGenerator(default_modules(TARGET)).generate(scored, TARGET)
    assert not any("whole_iterations" in e.values for s in found for e in s.entries)
    assert any("fission" in str(space) for space in found)


@T.prim_func
def pairs(A: T.Buffer((200, 16)), B: T.Buffer((200, 16))):
    """Each row is sorted by exchanges of neighbours."""
    for r in range(200):
        for i in range(16):
            B[r, i] = A[r, i]
        for p in range(16):
            for i in range(7 + (p + 1) % 2):
                a = B[r, 2 * i + p % 2]
                b = B[r, 2 * i + 1 + p % 2]
                B[r, 2 * i + p % 2] = T.min(a, b)
                B[r, 2 * i + 1 + p % 2] = T.max(a, b)


def test_autoschedule_sorts_a_row_in_each_lane() -> None:
    sch = autoschedule(pairs, target=TARGET)
    assert "turned_rows" in sch.script() and _lanes(sch) & {16, 32, 64}
    check_numbers(pairs, sch.mod, compiled=True)


def test_medians_are_those_of_numpy() -> None:
    a = np.random.default_rng(0).integers(0, 256, (N, M)).astype(np.uint8)
    b = np.zeros((N, M), np.uint8)
    sch = Schedule(median)
    default_trace(median, TARGET).apply(sch)
    build(sch.mod, target="native")(a, b)
    windows = np.lib.stride_tricks.sliding_window_view(a, (3, 3)).reshape(N - 2, M - 2, 9)
    np.testing.assert_array_equal(b[1:-1, 1:-1], np.median(windows, axis=2).astype(np.uint8))


@T.prim_func
def selection(A: T.Buffer((N, M)), B: T.Buffer((N, M))):
    """The smaller half of a window of 25 is sorted: 234 steps, where a square would have 312."""
    for y in range(N - 4):
        for x in range(M - 4):
            v = T.alloc_buffer((25,))
            for dy, dx in T.grid(5, 5):
                v[dy * 5 + dx] = A[y + dy, x + dx]
            for i in range(13):
                for j in range(i + 1, 25):
                    if v[j] < v[i]:
                        t = v[i]
                        v[i] = v[j]
                        v[j] = t
            B[y, x] = v[12]


@T.prim_func
def odd_even(A: T.Buffer((N, M)), B: T.Buffer((N, M))):
    """No multiple of a step gives the place of its first pair."""
    for y in range(N - 4):
        for x in range(M - 4):
            v = T.alloc_buffer((25,))
            for dy, dx in T.grid(5, 5):
                v[dy * 5 + dx] = A[y + dy, x + dx]
            for s in range(25):
                for i in range(12):
                    p = 2 * i + s % 2
                    low = T.min(v[p], v[p + 1])
                    high = T.max(v[p], v[p + 1])
                    v[p] = low
                    v[p + 1] = high
            B[y, x] = v[12]


@pytest.mark.parametrize("func", [selection, odd_even])
def test_networks_of_large_windows_stay_in_registers(func: PrimFunc) -> None:
    sch = Schedule(func)
    default_trace(func, TARGET).apply(sch)
    steps = sch.state.loops_above(sch.state.block(sch.get_block("v_1")))[-2:]
    assert {n.kind for n in steps} == {ForKind.UNROLLED}
    a = np.random.default_rng(0).standard_normal((N, M), np.float32)
    b = np.zeros((N, M), np.float32)
    build(sch.mod, target="native")(a, b)
    windows = np.lib.stride_tricks.sliding_window_view(a, (5, 5)).reshape(N - 4, M - 4, 25)
    np.testing.assert_array_equal(b[:-4, :-4], np.median(windows, axis=2))
    a[3:7, 20:90:3] = np.nan
    check_bits(func, sch, a)


def check_bits(func: PrimFunc, sch: Schedule, *inputs: np.ndarray) -> None:
    """The kernel gives what the program as written gives, NaN included."""
    results = []
    for mod in (func, sch.mod):
        out = np.zeros((N, M), np.float32)
        build(mod, target="native")(*inputs, out)
        results.append(out)
    np.testing.assert_array_equal(*results)


@T.prim_func
def named_places(A: T.Buffer((N, M)), P: T.Buffer((8,), "int32"), B: T.Buffer((N, M))):
    """Memory names the places of the copies: no unrolled loop tells them."""
    for y in range(N):
        for x in range(M):
            v = T.alloc_buffer((8,))
            for k in range(8):
                v[k] = A[y, x] * T.float32(k)
            for s in range(8):
                p = P[s]
                v[p] = v[p] + v[7 - p]
            B[y, x] = v[3]


def test_loops_whose_places_memory_names_stay_loops() -> None:
    sch = Schedule(named_places)
    default_trace(named_places, TARGET).apply(sch)
    block = sch.state.block(sch.get_block("v_1"))
    assert ForKind.UNROLLED not in {n.kind for n in sch.state.loops_above(block)}
    assert len(_lanes(sch)) == 1
