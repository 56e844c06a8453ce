"""Handles: the survival table of DESIGN.md, stale and foreign handles, undo, copy, removal."""

# ruff: noqa: E501  (tables read better with one case a line)
from __future__ import annotations

from collections.abc import Callable

import pytest
from oracle import check_refused, check_trace, picture
from schedule.programs import convolution, elementwise, fan_out, matmul, matmul_relu
from schedule.test_blocks import start

from metasched.errors import ScheduleError, VerifyError
from metasched.ir.equal import structural_equal
from metasched.ir.func import PrimFunc
from metasched.ir.stmt import evolve
from metasched.schedule.content import Content
from metasched.schedule.handles import BlockRV, LoopRV
from metasched.schedule.schedule import Schedule


def alive(sch: Schedule, rv: BlockRV | LoopRV) -> bool:
    try:
        sch.get(rv)
    except ScheduleError as error:
        assert error.reason == "stale-handle"
        return False
    return True


Steps = Callable[[Schedule, list, list], object]
SURVIVAL: dict[str, tuple[PrimFunc, str, Steps, str]] = {
    # program, blocks, steps, which handles of (blocks, loops of the first block) are gone
    "reorder": (matmul, "C", lambda s, b, x: s.reorder(x[2], x[0]), ""),
    "parallel": (matmul, "C", lambda s, b, x: s.parallel(x[0]), ""),
    "vectorize": (matmul, "C", lambda s, b, x: s.vectorize(x[1]), ""),
    "unroll": (matmul, "C", lambda s, b, x: s.unroll(x[1]), ""),
    "bind": (matmul, "C", lambda s, b, x: s.bind(x[0], "blockIdx.x"), ""),
    "annotate": (matmul, "C", lambda s, b, x: (s.annotate(x[0], "a", 1), s.annotate(b[0], "a", 1)), ""),
    "add_unit_loop": (matmul, "C", lambda s, b, x: s.add_unit_loop(x[1]), ""),
    "split": (matmul, "C", lambda s, b, x: s.split(x[1], [2, None]), "loop 1"),
    "fuse": (matmul, "C", lambda s, b, x: s.fuse(x[0], x[1]), "loop 0, loop 1"),
    "compute_at": (
        elementwise, "C B", lambda s, b, x: s.compute_at(b[1], x[0]), ""),
    "reverse_compute_at": (
        matmul_relu, "C D", lambda s, b, x: s.reverse_compute_at(b[1], x[0]), ""),
    "compute_inline": (elementwise, "C B", lambda s, b, x: s.compute_inline(b[1]), "block 1"),
    "reverse_compute_inline": (
        elementwise, "B C", lambda s, b, x: s.reverse_compute_inline(b[1]), "block 1"),
    "decompose_reduction": (matmul, "C", lambda s, b, x: s.decompose_reduction(b[0], x[2]), ""),
    "rfactor": (matmul, "C", lambda s, b, x: s.rfactor(x[2], 0), ""),
    "cache_read": (matmul, "C", lambda s, b, x: s.cache_read(b[0], 0, "local"), ""),
    "cache_write": (matmul, "C", lambda s, b, x: s.cache_write(b[0], 0, "local"), ""),
    "set_scope": (elementwise, "B", lambda s, b, x: s.set_scope(b[0], 0, "local"), ""),
}  # fmt: skip


@pytest.mark.parametrize("name", SURVIVAL)
def test_survival(name: str) -> None:
    func, blocks, step, gone = SURVIVAL[name]
    sch, handles, loops = start(func, *blocks.split())
    step(sch, handles, loops[0])
    dead = [f"block {n}" for n, rv in enumerate(handles) if not alive(sch, rv)]
    dead += [f"loop {n}" for n, rv in enumerate(loops[0]) if not alive(sch, rv)]
    assert ", ".join(dead) == gone


def test_handles_of_edited_blocks_name_the_documented_parts() -> None:
    sch, (c,), ((i, j, k),) = start(matmul, "C")
    copy = sch.cache_write(c, 0, "local")
    init = sch.decompose_reduction(c, k)
    assert [sch.get(b).name for b in (c, copy, init)] == ["C_update", "C_local", "C_init"]
    sch, (c,), ((i, j, k),) = start(matmul, "C")
    part = sch.rfactor(k, 0)
    assert [r.buffer.name for r in sch.get(c).reads] == ["C.rf"]
    assert [sch.get(x).var.name for x in sch.get_loops(part)] == ["i", "j", "k"]


def test_loops_of_a_moved_block_are_new() -> None:
    sch, (b, c), ((i, j), (x, y)) = start(elementwise, "B", "C")
    sch.compute_at(b, x)
    assert not alive(sch, i) and not alive(sch, j) and alive(sch, x)


def test_stale_and_foreign_handles_are_refused() -> None:
    sch, (c,), ((i, j, k),) = start(matmul, "C")
    sch.split(i, [2, None])
    error = check_refused(sch, lambda: sch.unroll(i), "stale-handle", "loop i is gone")
    assert "consuming step returned" in error.hint
    other = Schedule(matmul, seed=0)
    check_refused(
        other, lambda: other.unroll(k), "unknown-handle", "loop handle belongs to another"
    )
    check_refused(other, lambda: other.get_loops(c), "unknown-handle", "this block handle")
    v = sch.sample_categorical([1, 2], [1, 1])
    rest = other.get_loops("C")[0]
    check_refused(
        other, lambda: other.split(rest, [None, v]), "unknown-handle", "this value handle"
    )
    sch, (b,), _ = start(elementwise, "B")
    sch.compute_inline(b)
    check_refused(sch, lambda: sch.get_loops(b), "stale-handle", "block is gone")


def test_a_mark_is_refused_where_a_loop_is_needed() -> None:
    sch, (b,), _ = start(elementwise, "B")
    root = sch.sample_compute_location(b, decision=-1)
    check_refused(sch, lambda: sch.unroll(root), "not-a-loop", "mark <root>, not a loop")


def test_a_name_is_refused_where_a_loop_is_needed() -> None:
    sch, _, _ = start(matmul, "C")
    for step in (lambda: sch.split("i", [2, None]), lambda: sch.unroll("i")):
        check_refused(sch, step, "not-a-handle", "'i' is a name, and this argument is a handle")


def test_remove_rv() -> None:
    sch, (c,), ((i, j, k),) = start(matmul, "C")
    sch.remove_rv(i)
    check_refused(sch, lambda: sch.unroll(i), "unknown-handle", "or was removed")
    assert alive(sch, j)


def test_copies_are_independent_and_know_the_handles() -> None:
    sch, (c,), ((i, j, k),) = start(matmul, "C")
    before = picture(sch)[:3]
    other = sch.copy()
    a, b = other.split(i, [2, None])
    other.unroll(b)
    assert picture(sch)[:3] == before
    assert alive(sch, i) and not alive(other, i)
    check_refused(sch, lambda: sch.unroll(a), "unknown-handle", "another schedule")
    sch.split(i, [4, None])
    check_trace(matmul, sch)
    check_trace(matmul, other)
    third, fourth = sch.copy(), sch.copy()
    assert third.seed != fourth.seed and third.fork_seed() != fourth.fork_seed()


def test_undo_takes_back_step_after_step() -> None:
    sch, (c,), ((i, j, k),) = start(matmul, "C")
    pictures = [picture(sch)]
    steps: list[Callable[[], object]] = [
        lambda: sch.split(i, [2, None]),
        lambda: sch.sample_perfect_tile(k, 2),
        lambda: sch.cache_write(c, 0, "local"),
        lambda: sch.unroll(k),
    ]
    for step in steps:
        step()
        pictures.append(picture(sch))
    rng = sch.state.rng.state
    for want in reversed(pictures[:-1]):
        sch.undo()
        got = picture(sch)
        assert got[0] is want[0] and got[1].entries == want[1].entries and got[2] == want[2]
        assert sch.state.rng.state == rng, "what was drawn stays drawn"
    sch.split(i, [4, 2])
    check_trace(matmul, sch)
    for _ in range(3):
        sch.undo()
    check_refused(sch, sch.undo, "nothing-to-undo", "no step to undo")


def test_undo_of_a_copy_does_not_change_the_original() -> None:
    sch, (c,), ((i, j, k),) = start(matmul, "C")
    sch.unroll(i)
    other = sch.copy()
    other.undo()
    assert len(sch.trace) == len(other.trace) + 1 and alive(other, i)


def test_unknown_names_of_blocks_are_recorded_as_lookups() -> None:
    sch = Schedule(matmul, seed=0)
    loops = sch.get_loops("C")
    assert [e.kind.name for e in sch.trace] == ["get_block", "get_loops"]
    sch.cache_read("C", 0, "local", ["C"])
    assert [e.kind.name for e in sch.trace][2:] == ["get_block", "get_block", "cache_read"]
    assert len(loops) == 3


def test_names_of_new_blocks_and_buffers_stay_unique() -> None:
    sch = Schedule(fan_out, seed=0)
    first = sch.cache_read("X", 0, "local")
    second = sch.cache_read("Y", 0, "local", ["Y"])
    assert sch.get(first).name != sch.get(second).name
    check_trace(fan_out, sch)


def test_check_verifies_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `check`, a step that breaks the module raises an error and is undone."""
    sch = Schedule(convolution, seed=0, check=True)
    loops = sch.get_loops("Z")
    before = picture(sch)
    good = Content.set_func

    def bad(self: Content, name: str, func: PrimFunc) -> None:
        root = func.root
        broken = evolve(root, alloc_buffers=())
        good(self, name, func.with_body(evolve(func.body, block=broken)))

    monkeypatch.setattr(Content, "set_func", bad)
    with pytest.raises(VerifyError):
        sch.unroll(loops[0])
    assert picture(sch) == before


def test_errors_show_the_place_and_a_hint() -> None:
    sch, (c,), ((i, j, k),) = start(matmul, "C")
    with pytest.raises(ScheduleError) as caught:
        sch.parallel(k)
    text = str(caught.value)
    assert text.startswith("parallel: different iterations of loop k")
    assert "# ^^^" in text and "hint: only loops whose iterations are independent" in text
    assert caught.value.block_or_loop.var.name == "k"


def test_get_needs_a_number() -> None:
    sch, (c,), ((i, j, k),) = start(matmul, "C")
    check_refused(sch, lambda: sch.get(sch.mod["main"].params[0]), "not-a-number", "number")


def test_get_of_a_name_says_how_to_get_the_block() -> None:
    sch = Schedule(matmul)
    check_refused(sch, lambda: sch.get("C"), "not-a-handle", r"write sch.get_block\('C'\)")


def test_a_function_that_stands_twice_in_a_module_is_two() -> None:
    for func in (matmul, fan_out):
        sch = Schedule({"a": func, "b": func}, check=True)
        name = [r.block.name for r in sch.state.index.blocks.values()][1]
        for where in "ab":
            block = sch.get_block(name, func_name=where)
            sch.split(sch.get_loops(block)[0], [None, 2])
        assert structural_equal(sch.mod["a"], sch.mod["b"])
        assert not structural_equal(sch.mod["a"], func)
