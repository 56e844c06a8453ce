"""Blocks that write different elements of one buffer, moved to its consumers one by one."""

from __future__ import annotations

import itertools

import pytest
from oracle import check_refused, check_transform

from metasched.ir.func import PrimFunc
from metasched.schedule.schedule import Schedule
from metasched.script import parse
from metasched.script import tir as T

MAP = """
    for i, j in T.grid(8, {n}):
        with T.block("{name}"):
            vi, vj = T.axis.remap("SS", [i, j])
            D[vi, {at}] = A[vi, vj] * T.float32({factor})"""
SUM = """
    for i, j, k in T.grid(8, {n}, 3):
        with T.block("{name}"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                D[vi, {at}] = T.float32(0)
            D[vi, {at}] = D[vi, {at}] + A[vi, vj + vk] * T.float32({factor})"""
WINDOW = """
    for i, j, k in T.grid(8, {n}, {taps}):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + D[vi, vj + vk]"""


def joined(*parts: tuple[str, int, str], taps: int = 1, columns: int | None = None) -> PrimFunc:
    """Blocks D0, D1, ... that write columns of D, each a (nest, extent, index); C reads windows."""
    total = columns or sum(n for _, n, _ in parts)
    shape = f"(8, {total - taps + 1})"
    text = f"""@T.prim_func
def main(A: T.Buffer((8, 32), "float32"), C: T.Buffer({shape}, "float32")):
    D = T.alloc_buffer((8, {total}), "float32")"""
    for k, (nest, n, at) in enumerate(parts):
        text += nest.format(name=f"D{k}", n=n, at=at, factor=k + 2)
    return parse(text + WINDOW.format(n=total - taps + 1, taps=taps))


PROGRAMS = {
    "halves": joined((MAP, 8, "vj"), (MAP, 8, "vj + 8")),
    "halves of sums": joined((SUM, 8, "vj"), (SUM, 8, "vj + 8"), taps=3),
    "three parts": joined((MAP, 3, "vj + 6"), (SUM, 6, "vj"), (MAP, 4, "vj + 9"), taps=2),
    "even and odd": joined((MAP, 8, "vj * 2"), (SUM, 8, "vj * 2 + 1")),
    "even and odd in windows": joined((MAP, 6, "vj * 2 + 1"), (MAP, 6, "vj * 2"), taps=3),
    "every third": joined((MAP, 4, "vj * 3 + 1"), (MAP, 4, "vj * 3 + 2"), (SUM, 4, "vj * 3")),
    "turns, then a rest": joined((MAP, 3, "vj * 2"), (MAP, 3, "vj * 2 + 1"), (MAP, 5, "vj + 6")),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("depth", [0, 1])
def test_each_of_several_producers_runs_where_it_is_read(name: str, depth: int) -> None:
    func = PROGRAMS[name]
    blocks = [n for n in ("D0", "D1", "D2") if f'"{n}"' in func.script()]
    for order in itertools.islice(itertools.permutations(blocks), 3):
        sch = Schedule(func, check=True)
        loop = sch.get_loops("C")[depth]
        for block in order:
            sch.compute_at(block, loop)
            assert sch.get(sch.get_loops(block)[depth]).var is sch.get(loop).var
        check_transform(func, sch)


def test_a_tile_computes_its_part_of_each_producer() -> None:
    func = PROGRAMS["halves"]
    sch = Schedule(func, check=True)
    tile, _ = sch.split(sch.get_loops("C")[1], [None, 4])
    sch.compute_at("D1", tile)
    sch.parallel(sch.get_loops("D0")[0])
    sch.compute_at("D0", tile)
    check_transform(func, sch)
    sch.parallel(sch.get_loops("C")[0])
    check_transform(func, sch)


def test_two_writers_that_leave_gaps_do_not_cover() -> None:
    func = joined((MAP, 4, "vj * 3"), (MAP, 4, "vj * 3 + 1"), columns=12)
    sch = Schedule(func)
    loop = sch.get_loops("C")[0]
    message = "which is not proved to be written before"
    check_refused(sch, lambda: sch.compute_at("D0", loop), "region-cover", message)


def test_a_producer_whose_elements_another_overwrites_stays() -> None:
    """D0 below C's loop would overwrite what D1 has written."""
    func = joined((MAP, 12, "vj"), (MAP, 6, "vj + 3"), columns=12)
    sch = Schedule(func)
    loop = sch.get_loops("C")[0]
    check_refused(
        sch, lambda: sch.compute_at("D0", loop), "not-complete-or-reduction",
        "D0 is not the only writer of its elements of D: D1 may write them too",
    )  # fmt: skip
    check_refused(
        sch, lambda: sch.compute_at("D1", loop), "not-complete-or-reduction",
        "D1 is not the only writer of its elements of D: D0 may write them too",
    )  # fmt: skip


@T.prim_func
def two_readers(A: T.Buffer((8,), "float32"), C: T.Buffer((8,), "float32")):
    D = T.alloc_buffer((8,), "float32")
    for i in range(4):
        with T.block("D0"):
            vi = T.axis.spatial(4, i)
            D[vi] = A[vi] + T.float32(1)
    for i in range(4):
        with T.block("D1"):
            vi = T.axis.spatial(4, i)
            D[vi + 4] = D[vi] * T.float32(2)
    for i in range(8):
        with T.block("C"):
            vi = T.axis.spatial(8, i)
            C[vi] = D[vi] + D[vi // 2]


def test_a_producer_that_another_producer_reads_stays_before_it() -> None:
    sch = Schedule(two_readers)
    loop = sch.get_loops("C")[0]
    check_refused(sch, lambda: sch.compute_at("D0", loop), "consumer-outside", "D1 is not")


SUMS = {
    "R": """
    for i, k in T.grid(8, 6):
        with T.block("R"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                R[vi] = 0
            R[vi] = R[vi] + A[vi, vk]""",
    "C": """
    for i, j, k in T.grid(8, 4, 6):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = 0
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]""",
}


def corrected(order: str) -> PrimFunc:
    """D = C - R, where the sums C and R are computed in this order."""
    head = """@T.prim_func
def main(A: T.Buffer((8, 6), "int32"), B: T.Buffer((6, 4), "int32"), D: T.Buffer((8, 4), "int32")):
    R = T.alloc_buffer((8,), "int32")
    C = T.alloc_buffer((8, 4), "int32")"""
    last = """
    for i, j in T.grid(8, 4):
        with T.block("D"):
            vi, vj = T.axis.remap("SS", [i, j])
            D[vi, vj] = C[vi, vj] - R[vi]
"""
    return parse(head + "".join(SUMS[name] for name in order) + last)


@pytest.mark.parametrize("depth", [0, 1])
def test_a_consumer_moves_to_its_last_producer(depth: int) -> None:
    func = corrected("RC")
    sch = Schedule(func, check=True)
    sch.parallel(sch.get_loops("C")[0])
    sch.reverse_compute_at("D", sch.get_loops("C")[depth])
    check_transform(func, sch)


def test_a_consumer_stays_behind_all_its_producers() -> None:
    for order, to, other in (("CR", "C", "R"), ("RC", "R", "C")):
        sch = Schedule(corrected(order), check=True)
        loop = sch.get_loops(to)[0]
        message = f"every producer must be under i, but {other} is not"
        step = lambda: sch.reverse_compute_at("D", loop)  # noqa: B023, E731
        check_refused(sch, step, "producer-outside", message)


def test_a_part_that_an_earlier_producer_makes_keeps_its_consumer() -> None:
    """D0 is complete before D1, but C reads columns of both."""
    sch = Schedule(PROGRAMS["halves"], check=True)
    loop = sch.get_loops("D1")[0]
    step = lambda: sch.reverse_compute_at("C", loop)  # noqa: E731
    check_refused(sch, step, "producer-outside", "every producer must be under i, but D0 is not")


OTHER_WRITERS = """
@T.prim_func
def f(A: T.Buffer((8, 4), "int32"), S: T.Buffer((8,), "int32")):
    R = T.alloc_buffer((8,), "int32")
{blocks}
"""
WRITER = """
    for i in range(8):
        with T.block("{name}"):
            vi = T.axis.spatial(8, i)
            S[vi] = {value}
"""
SUM = """
    for i, k in T.grid(8, 4):
        with T.block("R"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                R[vi] = 0
            R[vi] = R[vi] + A[vi, vk]
"""


def other_writers(*blocks: str) -> Schedule:
    """The sum of each row in R, and blocks that write S; "R" stands for the sum."""
    text = "".join(SUM if b == "R" else WRITER.format(name=b[0], value=b[2:]) for b in blocks)
    return Schedule(parse(OTHER_WRITERS.format(blocks=text)), check=True)


@pytest.mark.parametrize("last", ["D=S[vi] * S[vi]", "D=3 - S[7 - vi % 4]", "D=A[vi, 2]"])
def test_a_consumer_moves_past_no_writer_before_and_behind(last: str) -> None:
    """B fills S before the sum, D updates or overwrites S behind its consumer C."""
    sch = other_writers("B=A[vi, 0]", "R", "C=R[vi] * 2", last)
    func = sch.func
    sch.reverse_compute_at("C", sch.get_loops("R")[0])
    check_transform(func, sch)


def test_a_consumer_stays_behind_a_writer_of_its_elements() -> None:
    sch = other_writers("R", "B=A[vi, 0]", "C=R[vi] * 2", "D=S[vi] * S[vi]")
    loop = sch.get_loops("R")[0]
    check_refused(
        sch, lambda: sch.reverse_compute_at("C", loop), "not-complete-or-reduction",
        "C is not the only writer of S: B writes it too",
    )  # fmt: skip


def test_a_consumer_stays_behind_a_nest_that_writes_its_elements() -> None:
    sch = other_writers("B=A[vi, 0]", "R", "C=R[vi] * 2")
    sch.merge(sch.get_loops("B")[0], sch.get_loops("R")[0])
    loop = sch.get_loops("R")[0]
    check_refused(
        sch, lambda: sch.reverse_compute_at("C", loop), "not-complete-or-reduction",
        "C is not the only writer of S: B writes it too",
    )  # fmt: skip
