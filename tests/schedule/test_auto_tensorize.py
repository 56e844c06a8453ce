"""get_auto_tensorize_mapping_info: which blocks map to an intrinsic, with equal results."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import check_transform
from schedule.intrinsic_families import OUTER, PRODUCT, described, registered

import metasched as ms
from metasched.errors import ScheduleError
from metasched.ir.func import PrimFunc
from metasched.schedule.auto_tensorize import get_auto_tensorize_mapping_info, tensorize_mappings
from metasched.schedule.tensorize_layout import results_in_tiles, transform_by_mapping
from metasched.workloads import get

UNIT = "test.unit"


def mapped(func: PrimFunc, block: str, desc: PrimFunc) -> list[str]:
    """The maps of all ways, as text over the names of the block's iterators."""
    sch = ms.Schedule(func)
    info = get_auto_tensorize_mapping_info(sch, sch.get_block(block), desc)
    assert info is not None
    return [str([str(output) for output in one.outputs]) for one in info.mappings]


def tensorized(func: PrimFunc, block: str, desc: PrimFunc, *, tiles: bool = True) -> int:
    """Check that every mapping of a block to a unit computes the same; returns their number."""
    plain = ms.Schedule(func)
    ways = tensorize_mappings(plain.get(plain.get_block(block)), desc)
    with registered(UNIT, desc):
        for way in ways:
            sch = ms.Schedule(func)
            done = transform_by_mapping(sch, sch.get_block(block), way)
            if tiles:
                results_in_tiles(sch, done, way)
            sch.tensorize(done.block, UNIT)
            check_transform(func, sch, compiled=False)
    return len(ways)


def test_iterators_of_one_signature_are_one_loop():
    func = get("c2d").func((2, 5, 5, 3, 8, 3, 1, 1))
    desc = described(**PRODUCT, kinds=("float32",) * 3)
    sch = ms.Schedule(func)
    ways = tensorize_mappings(sch.get(sch.get_block("conv")), desc)
    assert {way.extents for way in ways} == {(50, 8, 27), (8, 50, 27)}
    first = ways[0]
    assert [load.buffer.name for load in first.operands.values()] == ["P", "W", "Y"]
    assert first.paddings == (4, 1, 2) and first.sizes == (52, 8, 28)
    assert first.work == pytest.approx(52 * 28 / (50 * 27))


def test_an_iterator_that_the_tile_divides_is_not_fused():
    func = get("c2d").func((2, 5, 8, 4, 8, 3, 1, 1))
    desc = described(**PRODUCT, kinds=("float32",) * 3)
    sch = ms.Schedule(func)
    short, whole, *_ = tensorize_mappings(sch.get(sch.get_block("conv")), desc)
    assert short.extents == (2, 5, 3, 3, 8, 8, 4) and short.outside == 4
    assert whole.extents == (80, 8, 36)
    assert set(short.paddings) == set(whole.paddings) == {1}


def test_a_batch_stays_outside():
    desc = described(**OUTER)
    func = ms.einsum("bik,bkj->bij", (3, 8, 5), (3, 5, 8), dtype="int32")
    maps = mapped(func, "Z", desc)
    assert maps == ["['vb', 'vk', 'vi', 'vj']", "['vb', 'vk', 'vj', 'vi']"]


@pytest.mark.parametrize(
    ("subscripts", "first"),
    [
        ("ik,kj->ij", "['vi', 'vj', 'vk']"),
        ("ki,kj->ij", "['vi', 'vj', 'vk']"),
        ("ik,jk->ij", "['vi', 'vj', 'vk']"),
        ("ik,kj->ji", "['vi', 'vj', 'vk']"),
        ("ki,jk->ji", "['vj', 'vi', 'vk']"),
    ],
)
def test_mappings_with_most_operands_in_memory_order_come_first(subscripts, first):
    sizes = {"i": 8, "j": 4, "k": 6}
    shapes = [[sizes[c] for c in word] for word in subscripts.partition("->")[0].split(",")]
    func = ms.einsum(subscripts, *shapes, dtype="int32")
    desc = described(**PRODUCT)
    assert mapped(func, "Z", desc)[0] == first
    assert tensorized(func, "Z", desc, tiles=False) == 2


def test_operands_are_matched_by_type():
    func = get("gmm_u8s8s32").func((1, 8, 8, 4))
    desc = described(**PRODUCT, kinds=("uint8", "int8", "int32"))
    assert tensorized(func, "Z", desc) == 1
    swapped = described(**PRODUCT, kinds=("int8", "uint8", "int32"))
    assert tensorized(func, "Z", swapped) == 1


def test_a_reduction_of_an_instruction_may_be_cut_in_two():
    """As in byte products: the layout of B is [k / 4, j * 4 + k % 4]."""
    desc = described(
        {"i": 4, "j": 4, "k": 2, "s": 4}, "i, k * 4 + s", "k, j * 4 + s", "i, j",
        ("int8", "int8", "int32"),
    )  # fmt: skip
    func = get("gmm_s8s8s32").func((1, 4, 8, 16))
    assert tensorized(func, "Z", desc) == 2
    assert tensorized(get("gmm_s8s8s32").func((1, 3, 5, 9)), "Z", desc) == 2


def test_a_product_of_lanes_maps_as_well():
    desc = described({"i": 8, "k": 4}, "k", "i, k", "i", ("uint8", "int8", "int32"))
    assert tensorized(get("gmm_u8s8s32").func((1, 3, 16, 8)), "Z", desc) == 1


@pytest.mark.parametrize(
    ("name", "shape", "block"),
    [
        ("tbg", (1, 5, 2, 3), "S"),
        ("c1d", (1, 7, 2, 3, 3, 2, 1), "conv"),
        ("dil", (1, 3, 4, 2, 3, 2, 1, 1, 2), "conv"),
    ],
)
def test_whole_operators(name, shape, block):
    func = get(name).func(shape)
    assert tensorized(func, block, described(**PRODUCT, kinds=("float32",) * 3)) >= 2


def test_a_square_reads_one_buffer_twice():
    func = ms.einsum("ik,jk->ij", (5, 6), (5, 6), dtype="int32")
    text = func.script().replace('B: T.Buffer((5, 6), "int32"),', "").replace("B[", "A[")
    gram = ms.parse(text)
    assert tensorized(gram, "Z", described(**PRODUCT)) == 2


def test_a_unit_iterator_is_padded():
    for left, right in (((1, 4), (4, 4)), ((3, 1), (1, 4)), ((1, 1), (1, 1))):
        func = ms.einsum("ik,kj->ij", left, right, dtype="int32")
        assert tensorized(func, "Z", described(**PRODUCT)) == 2


def test_a_unit_loop_of_the_description_needs_no_iterator():
    func = ms.einsum("ik,k->i", (4, 4), (4,), dtype="int32")
    desc = described({"i": 4, "j": 1, "k": 2}, "i, k", "k, j", "i, j")
    assert tensorized(func, "Z", desc) == 1
    wide = described(**PRODUCT)
    assert "no spatial iterator of Z moves B and Z" in refused(func, "Z", wide).message


def in_wide_integers(func: PrimFunc) -> PrimFunc:
    """The same program with int64 loops."""

    def wide(found: re.Match[str]) -> str:
        return f"T.grid({', '.join(f'T.int64({n})' for n in found[1].split(', '))})"

    return ms.parse(re.sub(r"T\.grid\(([^)]*)\)", wide, func.script()))


def test_loops_of_64_bits():
    func = in_wide_integers(ms.einsum("ik,kj->ij", (5, 4), (4, 7), dtype="int32"))
    assert "T.grid(T.int64(5), T.int64(7), T.int64(4))" in func.script()
    assert tensorized(func, "Z", described(**PRODUCT)) == 2
    rows = in_wide_integers(ms.einsum("nik,kj->nij", (2, 3, 4), (4, 4), dtype="int32"))
    assert tensorized(rows, "Z", described(**PRODUCT)) >= 2


def test_the_groups_of_a_convolution_are_a_batch():
    func = get("grp").func((1, 3, 4, 4, 8, 2, 1, 0, 1, 2))
    desc = described(**PRODUCT, kinds=("float32",) * 3)
    sch = ms.Schedule(func)
    first = tensorize_mappings(sch.get(sch.get_block("conv")), desc)[0]
    assert first.cuts == {3: 4} and first.extents[:1] == (1,) and first.groups
    assert tensorized(func, "conv", desc) >= 2


GROUPED_QUERIES = """
@T.prim_func
def scores(Q: T.Buffer((4, 3, 5), "int32"), K: T.Buffer((2, 6, 5), "int32"),
           R: T.Buffer((4, 3, 6), "int32")):
    S = T.alloc_buffer((4, 3, 6), "int32")
    for h, i, j, d in T.grid(4, 3, 6, 5):
        with T.block("S"):
            vh, vi, vj, vd = T.axis.remap("SSSR", [h, i, j, d])
            with T.init():
                S[vh, vi, vj] = 0
            S[vh, vi, vj] = S[vh, vi, vj] + Q[vh, vi, vd] * K[vh // 2, vj, vd]
    for j, i, h in T.grid(6, 3, 4):
        with T.block("R"):
            vj, vi, vh = T.axis.remap("SSS", [j, i, h])
            R[vh, vi, vj] = T.max(S[vh, vi, vj], 0)
"""


@pytest.mark.parametrize("finished", [False, True])
def test_queries_of_one_group_are_rows_of_one_product(finished):
    func, desc = ms.parse(GROUPED_QUERIES), described(**PRODUCT)
    maps = mapped(func, "S", desc)
    assert "FloorDiv(i0, IntImm(2))" in maps[0]
    assert "Add(Mul(FloorMod(i0, IntImm(2)), IntImm(3)), i1)" in maps[0]
    plain = ms.Schedule(func)
    with registered(UNIT, desc):
        for way in tensorize_mappings(plain.get(plain.get_block("S")), desc):
            sch = ms.Schedule(func)
            finish = sch.get_block("R") if finished else None
            done = transform_by_mapping(sch, sch.get_block("S"), way, finish)
            results_in_tiles(sch, done, way)
            sch.tensorize(done.block, UNIT)
            check_transform(func, sch, compiled=False)


@pytest.mark.parametrize("index", ["vh % 2 + vh // 2", "vh // 4 + vh // 2 % 2"])
def test_an_iterator_used_by_several_digits_is_not_cut(index):
    """Both digits move both operands, or the quotients have two divisors."""
    text = GROUPED_QUERIES.replace("K: T.Buffer((2,", "K: T.Buffer((4,")
    sch = ms.Schedule(ms.parse(text.replace("K[vh // 2,", f"K[{index},")))
    ways = tensorize_mappings(sch.get(sch.get_block("S")), described(**PRODUCT))
    assert ways and all(not way.cuts for way in ways)


LETTERS = {"b": "bc", "m": "mn", "n": "pq", "k": "kl"}


@st.composite
def products(draw) -> PrimFunc:
    """Products summed over letters: batches, rows, columns and reductions of one or two letters,
    in any order in each operand."""
    groups = {
        kind: letters[: draw(st.integers(0 if kind == "b" else 1, 2))]
        for kind, letters in LETTERS.items()
    }
    sizes = {c: draw(st.integers(1, 3)) for word in groups.values() for c in word}

    def word(kinds: str) -> str:
        return "".join(draw(st.permutations("".join(groups[kind] for kind in kinds))))

    a, b, c = word("bmk"), word("bkn"), word("bmn")
    shapes = [[sizes[letter] for letter in one] for one in (a, b)]
    return ms.einsum(f"{a},{b}->{c}", *shapes, dtype="int32")


@st.composite
def units(draw) -> PrimFunc:
    """Units of one to three loops, of one step too, their operands in any order."""
    tiles = {name: draw(st.integers(1, 4)) for name in "ijk" if draw(st.booleans())}
    if not tiles:
        tiles = {"i": 2}

    def at(word: str) -> str:
        return ", ".join(draw(st.permutations([c for c in word if c in tiles]))) or "0"

    a, b, c = at("ik"), at("kj"), at("ij")
    return described(dict(draw(st.permutations(list(tiles.items())))), a, b, c)


@settings(max_examples=6, derandomize=True, deadline=None)
@given(products(), units())
def test_random_products_on_random_units(func, desc):
    assert tensorized(func, "Z", desc) >= 1


# -- refusals --------------------------------------------------------------------------------------


def refused(func: PrimFunc, block: str, desc: PrimFunc) -> ScheduleError:
    sch = ms.Schedule(func)
    with pytest.raises(ScheduleError) as caught:
        tensorize_mappings(sch.get(sch.get_block(block)), desc)
    assert get_auto_tensorize_mapping_info(sch, sch.get_block(block), desc) is None
    return caught.value


def test_a_depthwise_convolution_has_no_columns():
    error = refused(
        get("dep").func((1, 6, 6, 4, 3, 1, 1)), "conv", described(**OUTER, kinds=("float32",) * 3)
    )
    assert error.reason == "no-iterator"
    assert "moves" in error.message and "and no other operand" in error.message
    assert "of the description does" in error.message


def test_another_value_or_type_does_not_map():
    func = ms.einsum("ik,kj->ij", (4, 4), (4, 4))
    error = refused(func, "Z", described(**OUTER))
    assert error.reason == "computation" and "or different types" in error.message


def test_a_description_is_loops_around_one_store():
    func = ms.einsum("ik,kj->ij", (4, 4), (4, 4), dtype="int32")
    error = refused(func, "Z", func)
    assert error.reason == "description" and "without init" in error.message


def test_a_symbolic_extent_does_not_map():
    func = ms.parse(
        """
@T.prim_func
def f(a: T.handle, B: T.Buffer((4, 4), "int32"), c: T.handle):
    n = T.int32()
    A = T.match_buffer(a, (n, 4), "int32")
    C = T.match_buffer(c, (n, 4), "int32")
    for i, j, k in T.grid(n, 4, 4):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = 0
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]
"""
    )
    error = refused(func, "C", described(**PRODUCT))
    assert error.reason == "no-iterator" and "have no constant extent" in error.message
