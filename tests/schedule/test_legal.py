"""Queries of a schedule: legal steps and footprints; and `check`, its verification."""

from __future__ import annotations

import pytest
from oracle import picture

from metasched.errors import ScheduleError, VerifyError
from metasched.ir.stmt import evolve
from metasched.schedule import selfcheck
from metasched.schedule.instruction import PRIMITIVES
from metasched.schedule.schedule import Schedule
from metasched.script import tir as T


@T.prim_func
def program(A: T.Buffer((8, 16), "float32"), D: T.Buffer((8,), "float32")):
    B = T.alloc_buffer((8, 16), "float32")
    C = T.alloc_buffer((8,), "float32")
    for i, j in T.grid(8, 16):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] * T.float32(2)
    for i, k in T.grid(8, 16):
        with T.block("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = T.float32(0)
            C[vi] = C[vi] + B[vi, vk]
    for i in range(8):
        with T.block("D"):
            vi = T.axis.spatial(8, i)
            D[vi] = C[vi] + T.float32(1)


def test_legal_lists_the_primitives_that_apply_to_a_loop():
    sch = Schedule(program, seed=0)
    i, k = sch.get_loops("C")
    before = picture(sch)
    of_k, of_i = sch.legal(k), sch.legal(i)
    assert picture(sch) == before
    assert of_i["parallel"] is None and of_i["split"] is None and of_i["blockize"] is None
    assert of_i["read_at"] is None and of_i["write_at"] is None
    assert of_k["rfactor"] is None and of_i["fuse"] is None and of_i["reorder"] is None
    assert "may touch the same element" in (of_k["parallel"] or "")
    assert "drives no reduce iterator" in (of_i["rfactor"] or "")
    assert "does not match" in (of_i["tensorize"] or "")


def test_legal_lists_the_primitives_that_apply_to_a_block():
    sch = Schedule(program, seed=0)
    of_b, of_c, of_d = sch.legal("B"), sch.legal(sch.get_block("C")), sch.legal("D")
    assert of_b["compute_inline"] is None and of_b["compute_at"] is None
    assert of_c["decompose_reduction"] is None and of_c["cache_write"] is None
    assert of_d["reverse_compute_at"] is None and of_d["fuse_reduction_epilogue"] is None
    for step in ("transform_layout", "transform_block_layout", "reindex_cache_read", "overcompute"):
        assert of_b[step] is None and of_c[step] is None
    assert of_c["reindex_cache_write"] is None
    assert (
        "is a reduction" in (of_c["compute_inline"] or "")
        or "not spatial" in of_c["compute_inline"]
    )
    assert "no init" in (of_b["decompose_reduction"] or "")
    assert of_d["compute_at"] is not None
    root = sch.legal("root")
    assert all(why for name, why in root.items() if name not in ("cache_index",))


def test_legal_gives_the_refusal_that_the_step_raises():
    sch = Schedule(program, seed=0)
    for name, why in sch.legal(sch.get_loops("B")[0]).items():
        if name in ("add_unit_loop", "parallel", "vectorize", "unroll", "blockize"):
            trial = sch.copy()
            step = getattr(trial, name)
            if why is None:
                step(trial.get_loops("B")[0])
            else:
                with pytest.raises(ScheduleError):
                    step(trial.get_loops("B")[0])


NOT_ASKED = {
    "annotate", "unannotate", "enter_postproc", "require", "annotate_buffer_access",
    "unsafe_hide_buffer_access", "unsafe_set_dtype",
}  # fmt: skip
"""Notes and markers, and what is unsafe by name."""


def test_every_primitive_says_how_it_is_tried():
    kinds = [kind for kind in PRIMITIVES.values() if not kind.pure and kind.name not in NOT_ASKED]
    silent = [kind.name for kind in kinds if kind.of_loop is None and kind.of_block is None]
    assert not silent, f"give @primitive of_loop= or of_block= (schedule/ways.py): {silent}"


def test_footprints():
    sch = Schedule(program, seed=0)
    i, k = sch.get_loops("C")
    assert sch.footprint(i) == {"B": 8 * 16 * 4, "C": 8 * 4}
    assert sch.footprint(k) == {"B": 16 * 4, "C": 4}
    k0, k1 = sch.split(k, [None, 4])
    assert sch.footprint(k1) == {"B": 16, "C": 4}

    @T.prim_func
    def symbolic(a: T.handle):
        n = T.int32()
        A = T.match_buffer(a, (n,), "int32")
        for i in range(n):
            with T.block("A"):
                v = T.axis.spatial(n, i)
                A[v] = 1

    sch = Schedule(symbolic, seed=0)
    assert sch.footprint(sch.get_loops("A")[0]) == {"A": None}


def test_a_checked_schedule_accepts_sound_steps():
    sch = Schedule(program, seed=0, check=True)
    i, k = sch.get_loops("C")
    k0, k1 = sch.split(k, [None, 4])
    sch.rfactor(k1, 0)
    sch.compute_inline("B")
    sch.decompose_reduction("C", sch.get_loops("C")[1])


def test_a_stale_fact_is_found():
    sch = Schedule(program, seed=0)
    selfcheck.check_module(sch.mod)
    root = sch.func.root
    (key,) = [k for k in root.facts if getattr(k, "__name__", "") == "_stage_pipeline"]
    root.facts[key] = selfcheck.VerifyError("wrong")
    with pytest.raises(VerifyError, match="stage pipeline is cached as"):
        selfcheck.check_module(sch.mod)


def test_a_broken_edit_is_found():
    sch = Schedule(program, seed=0, check=True)
    state = sch.state
    loop = state.index.loops[sch.get(sch.get_loops("B")[0]).var]
    broken = evolve(loop, body=loop)  # binds one variable twice
    from metasched.schedule import edit

    with pytest.raises(VerifyError):
        state.commit(edit.replace(loop, broken))


def test_the_setting_turns_checks_on(monkeypatch):
    monkeypatch.setenv("METASCHED_CHECK", "1")
    assert Schedule(program, seed=0).state.check
    assert not Schedule(program, seed=0, check=False).state.check
