"""get_auto_tensorize_mapping_info: what maps to an intrinsic, and what it computes then."""

from __future__ import annotations

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
    """Every way in which a block maps to a unit computes the same; returns how many there are."""
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
def test_the_way_that_lies_as_described_comes_first(subscripts, first):
    sizes = {"i": 8, "j": 4, "k": 6}
    shapes = [[sizes[c] for c in word] for word in subscripts.partition("->")[0].split(",")]
    func = ms.einsum(subscripts, *shapes, dtype="int32")
    desc = described(**PRODUCT)
    assert mapped(func, "Z", desc)[0] == first
    assert tensorized(func, "Z", desc, tiles=False) == 2


def test_types_tell_the_operands_apart():
    func = get("gmm_u8s8s32").func((1, 8, 8, 4))
    desc = described(**PRODUCT, kinds=("uint8", "int8", "int32"))
    assert tensorized(func, "Z", desc) == 1
    swapped = described(**PRODUCT, kinds=("int8", "uint8", "int32"))
    assert tensorized(func, "Z", swapped) == 1


def test_a_reduction_of_an_instruction_may_be_cut_in_two():
    """As the bytes of a word: B lies as [k / 4, j * 4 + k % 4]."""
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
    """Units of one to three loops, their operands in any order."""
    tiles = {name: draw(st.integers(2, 4)) for name in "ijk" if draw(st.booleans())}
    if not tiles:
        tiles = {"i": 2}

    def at(word: str) -> str:
        return ", ".join(draw(st.permutations([c for c in word if c in tiles]))) or "0"

    a, b, c = at("ik"), at("kj"), at("ij")
    return described(dict(draw(st.permutations(list(tiles.items())))), a, b, c)


@settings(max_examples=6, derandomize=True, deadline=None)
@given(products(), units())
def test_random_products_on_random_units(func, desc):
    try:
        assert tensorized(func, "Z", desc) >= 1
    except ScheduleError as error:
        assert error.reason == "no-iterator" and "extent 1" in error.message


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


def test_a_row_of_one_is_no_loop():
    func = ms.einsum("ik,kj->ij", (1, 4), (4, 4), dtype="int32")
    error = refused(func, "Z", described(**OUTER))
    assert error.reason == "no-iterator"
    assert "iterators of Z that move A and Z have extent 1" in error.message


def test_another_value_or_type_does_not_map():
    func = ms.einsum("ik,kj->ij", (4, 4), (4, 4))
    error = refused(func, "Z", described(**OUTER))
    assert error.reason == "computation" and "of other types, than described" in error.message


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
