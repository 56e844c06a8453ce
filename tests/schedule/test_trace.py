"""Traces: replay, decisions, simplification, JSON and Python text."""

# ruff: noqa: E501  (tables read better with one case a line)
from __future__ import annotations

import json
import math
from typing import Any

import pytest
from oracle import check_trace, check_transform, refusal
from schedule.programs import elementwise, matmul, matmul_relu
from schedule.test_blocks import start

from metasched.analysis import cover
from metasched.errors import ScheduleError, TraceError
from metasched.ir.buffer import Buffer
from metasched.ir.equal import structural_equal
from metasched.ir.expr import EQ, Not, compare, logical_and
from metasched.schedule.schedule import Schedule
from metasched.schedule.trace import Trace
from metasched.script import tir as T


def sampled(seed: int = 0) -> Schedule:
    """A trace with tiles, a constraint, an unroll depth, and unused steps."""
    sch = Schedule(matmul_relu, seed=seed)
    block = sch.get_block("C")
    i, j, k = sch.get_loops(block)
    sch.get_consumers(block)
    tile = sch.sample_perfect_tile(i, 3, 4)
    inner = sch.sample_perfect_tile(k, 2, 6)
    sch.require(tile[2] * inner[1] <= 12)
    sch.sample_categorical([1, 2], [0.5, 0.5])
    depth = sch.sample_categorical([0, 16, 64], [0.2, 0.3, 0.5])
    i0, i1, i2 = sch.split(i, tile)
    k0, k1 = sch.split(k, [None, inner[1] * 1])
    sch.reorder(i0, j, k0, i1, k1, i2)
    sch.annotate(block, "unroll", {"steps": [depth, depth + 1]})
    sch.enter_postproc()
    sch.reverse_compute_at("D", i0)
    return sch


def replay(trace: Trace, seed: int = 1, **options: Any) -> Schedule:
    sch = Schedule(matmul_relu, seed=seed)
    trace.apply(sch, **options)
    return sch


# -- replay ----------------------------------------------------------------------------------------


@T.prim_func
def two_readers(
    A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32"), C: T.Buffer((8,), "float32")
):
    for i in range(8):
        with T.block("B"):
            vi = T.axis.spatial(8, i)
            B[vi] = A[vi] * 2.0
    for i in range(8):
        with T.block("C"):
            vi = T.axis.spatial(8, i)
            C[vi] = A[vi] + 1.0


def allocated(sch: Schedule) -> tuple[Buffer, ...]:
    return sch.mod["main"].root.alloc_buffers


def cached_twice() -> Schedule:
    """Each block reads its own copy of A; the copies differ only in their numbers."""
    sch = Schedule(two_readers)
    for name in "BC":
        sch.cache_read(sch.get_block(name), 0, "global", [name])
    return sch


def test_replays_share_buffers_and_one_schedule_never_does() -> None:
    first, second = cached_twice(), cached_twice()
    assert all(a is b for a, b in zip(allocated(first), allocated(second), strict=True))
    a, b = allocated(first)
    assert (a.name, a.shape, a.dtype, a.scope) == (b.name, b.shape, b.dtype, b.scope)
    assert a is not b and a.data is not b.data
    fork = first.copy()
    for sch, scope in ((first, "local"), (fork, "shared")):
        sch.set_scope(sch.get_block(a.name), 0, scope)
    assert {x.scope for x in allocated(first)} == {"local", "global"}
    assert {x.scope for x in allocated(fork)} == {"shared", "global"}


def test_a_replay_finds_what_was_proved_about_its_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    def moved() -> None:
        sch = cached_twice()
        sch.compute_at(sch.get_block("A_global"), sch.get_loops(sch.get_block("B"))[0])

    monkeypatch.setattr(cover, "_COVERED", set())
    moved()
    proved = len(cover._COVERED)
    moved()
    assert len(cover._COVERED) == proved > 0


def test_buffers_are_numbered_on_from_a_scheduled_module() -> None:
    sch = cached_twice()
    copies = [n.name for n in allocated(sch)]
    assert len(copies) == 2
    sch.set_scope(sch.get_block("A_global"), 0, "local")  # the newest number is a buffer's
    later = Schedule(sch.mod)
    later.set_scope(later.get_block("A_global_1"), 0, "local")
    a, b = allocated(later)
    assert a.scope == b.scope == "local" and a is not b


def test_all_round_trips() -> None:
    check_transform(matmul_relu, sampled(), "sampled")


def test_a_trace_is_applied_twice_to_one_schedule_over_fresh_handles() -> None:
    sch = Schedule(elementwise, seed=0)
    sch.get_loops(sch.get_block("B"))
    trace = sch.trace
    trace.apply(sch)
    assert len(sch.trace) == 4 and len({rv for e in sch.trace for rv in e.outputs}) == 6


def test_fresh_draws_anew_within_the_space() -> None:
    trace = sampled().trace
    seen = set()
    for seed in range(12):
        sch = replay(trace, seed, decisions="fresh")
        seen.add(sch.trace.decisions())
        tile, inner = sch.trace.decisions()[:2]
        assert math.prod(tile) == 8 and tile[2] * inner[1] <= 12
        assert structural_equal(replay(sch.trace).mod, sch.mod)
    assert len(seen) > 6
    assert (
        replay(trace, 3, decisions="fresh").trace.decisions()
        == replay(trace, 3, decisions="fresh").trace.decisions()
    )


def test_repair_counts_and_records_what_it_did() -> None:
    trace = sampled().trace
    position = trace.sampling()[0][0]
    mutant = trace.with_decision(position, [8, 8, 2])
    with pytest.raises(ScheduleError, match=r"\[8, 8, 2\] is not in the domain") as caught:
        replay(mutant)
    assert caught.value.reason == "decision-not-allowed" and "repair" in caught.value.hint
    sch = replay(mutant, decisions="repair")
    assert sch.state.repairs == 1
    assert sch.trace.decisions()[0] == (1, 4, 2)
    assert structural_equal(replay(sch.trace).mod, sch.mod)


def test_with_decision_changes_one_step() -> None:
    trace = sampled().trace
    position, entry = trace.sampling()[0]
    other = trace.with_decision(entry, [1, 4, 2])
    assert trace.decisions()[1:] == other.decisions()[1:]
    assert other.decisions()[0] == (1, 4, 2) and trace.entries[position] is entry
    assert replay(other).trace.decisions() == other.decisions()
    with pytest.raises(TraceError, match="step 0, get_block, carries no decision"):
        trace.with_decision(0, 1)


def test_stored_needs_every_decision() -> None:
    trace = sampled().trace
    holes = trace.with_decision(trace.sampling()[0][0], None)
    with refusal("no-decision", "the trace holds no decision"):
        replay(holes)


def test_without_postproc() -> None:
    sch = sampled()
    half = replay(sch.trace, without_postproc=True)
    assert [e.kind.name for e in half.trace][-1] == "annotate"
    assert "enter_postproc" not in half.trace.simplified().as_python()
    short = sch.trace.simplified(without_postproc=True)
    assert structural_equal(replay(short).mod, half.mod)


def test_a_trace_of_another_program_is_refused() -> None:
    trace = sampled().trace
    with pytest.raises(ScheduleError, match="no block is called 'C'"):
        trace.apply(Schedule(_renamed(), seed=0))
    sch = Schedule(elementwise, seed=0)
    with pytest.raises(TraceError, match="get_loops gives 2 results here, the trace has 3"):
        trace.apply(sch)
    assert len(sch.trace) == 1


def _renamed() -> Any:
    from schedule.programs import softmax

    return softmax


# -- simplification --------------------------------------------------------------------------------


def test_simplified_drops_only_what_nothing_uses() -> None:
    sch = sampled()
    short = sch.trace.simplified()
    names = [e.kind.name for e in short]
    assert "get_consumers" not in names and len(names) == len(sch.trace) - 2
    assert structural_equal(replay(short).mod, sch.mod)


@pytest.mark.parametrize("where", ["list", "expression", "dictionary", "variadic"])
def test_uses_in_containers_count(where: str) -> None:
    sch, (c,), ((i, j, k),) = start(matmul, "C")
    if where == "list":
        sch.cache_read(c, 0, "local", [sch.get_block("C")])
    elif where == "expression":
        sch.split(i, [None, sch.sample_categorical([2, 4], [1, 1]) * 2])
    elif where == "dictionary":
        sch.annotate(c, "k", {"a": [sch.sample_categorical([2, 4], [1, 1])]})
    else:
        sch.reorder(*reversed(sch.get_loops(c)))
    assert len(sch.trace.simplified()) >= 3
    check_trace(matmul, sch)


# -- JSON ------------------------------------------------------------------------------------------


def test_json_is_plain_and_versioned() -> None:
    data = json.loads(sampled().trace.to_json(indent=1))
    assert data["schema"] == 1
    step = data["steps"][3]
    assert step["kind"] == "sample_perfect_tile" and step["args"] == {
        "loop": "$l1", "n": 3, "max_innermost_factor": 4,
    }  # fmt: skip
    assert step["domain"]["extent"] == 8 and math.prod(step["decision"]) == 8


def test_odd_values_come_back() -> None:
    sch, (c,), ((i, j, k),) = start(matmul, "C")
    odd = {"$": "$x", "": ["$$y", float("inf"), -0.0, 10**20, None, True]}
    sch.annotate(c, "$key", odd)
    again = Schedule(matmul, seed=0)
    Trace.from_json(sch.trace.to_json()).apply(again)
    got = again.get(again.get_block("C")).annotations["$key"]
    assert got == odd and math.copysign(1, got[""][2]) == -1
    nan = sch.copy()
    nan.annotate(i, "nan", float("nan"))
    assert math.isnan(Trace.from_json(nan.trace.to_json()).entries[-1].values[2])


def edited(change: Any) -> str:
    data = json.loads(sampled().trace.to_json())
    change(data)
    return json.dumps(data)


def test_a_trace_from_before_an_argument_came_takes_its_default() -> None:
    sch = Schedule(matmul)
    i, j, k = sch.get_loops("C")
    sch.vectorize(j)
    sch.decompose_reduction("C", i)
    data = json.loads(sch.trace.to_json())
    assert data["steps"][-1]["args"].pop("keep_kinds") is False
    again = Schedule(matmul)
    Trace.from_json(json.dumps(data)).apply(again)
    assert structural_equal(again.mod, sch.mod)


BAD_JSON: list[tuple[str, str]] = [
    ("", "is not JSON"),
    (sampled().trace.to_json()[:200], "is not JSON"),
    ("[1, 2]", 'no "schema" field'),
    (edited(lambda d: d.update(schema=99)), "schema 99; this version reads 1"),
    (edited(lambda d: d.pop("steps")), 'no list "steps"'),
    (edited(lambda d: d["steps"].__setitem__(0, 5)), 'step 0 has no "kind"'),
    (edited(lambda d: d["steps"][1].pop("kind")), 'step 1 has no "kind"'),
    (edited(lambda d: d["steps"][1].update(kind="frobnicate")), "step 1: .*frobnicate"),
    (edited(lambda d: d["steps"][1].pop("args")), r'step 1 \(get_loops\) needs an object "args"'),
    (edited(lambda d: d["steps"][1]["args"].pop("block")), "misses the argument 'block'"),
    (edited(lambda d: d["steps"][1]["args"].update(depth=3)), "unknown arguments depth"),
    (edited(lambda d: d["steps"][1]["args"].update(block="$b9")), "uses b9, which no earlier step"),
    (edited(lambda d: d["steps"][1]["outputs"].append("b0")), "bad or repeated output 'b0'"),
    (edited(lambda d: d["steps"][1]["outputs"].append("q7")), "bad or repeated output 'q7'"),
    (edited(lambda d: d["steps"][3].pop("decision")), 'needs a "decision" and an object "domain"'),
    (edited(lambda d: d["steps"][3].update(domain=4)), 'needs a "decision" and an object "domain"'),
    (
        edited(lambda d: d["steps"][5]["args"].update(condition={"x": 1})),
        "cannot be read: {'x': 1}",
    ),
    (
        edited(lambda d: d["steps"][5]["args"].update(condition={"expr": ["system", 1]})),
        "expression that cannot be read",
    ),
    (
        edited(lambda d: d["steps"][5]["args"].update(condition={"expr": ["LE", 1]})),
        "expression that cannot be read",
    ),
    (
        edited(lambda d: d["steps"][5]["args"].update(condition={"index_map": {"inputs": 3}})),
        "index map that cannot be read",
    ),
]


@pytest.mark.parametrize(("text", "message"), BAD_JSON, ids=range(len(BAD_JSON)))
def test_bad_json_is_explained(text: str, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        Trace.from_json(text)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["steps"][3].update(decision=[2, 2, 3]), "not in the domain"),
        (lambda d: d["steps"][3].update(decision=[2, 2, "2"]), "decision takes list.int. or None"),
        (lambda d: d["steps"][3].update(decision=None), "holds no decision"),
        (lambda d: d["steps"][3].update(outputs=["v5", "v6"]), "uses v7"),
        (lambda d: d["steps"][0]["args"].update(name="Q"), "no block is called 'Q'"),
    ],
)
def test_edited_json_is_refused_at_the_latest_in_replay(change: Any, message: str) -> None:
    with pytest.raises((ScheduleError, TraceError), match=message):
        replay(Trace.from_json(edited(change)))


def test_to_json_refuses_objects_that_cannot_be_stored() -> None:
    sch, (c,), ((i, j, k),) = start(matmul, "C")
    sch.annotate(c, "thing", [object()])
    with pytest.raises(TraceError, match="a object cannot be stored in a trace"):
        sch.trace.to_json()


# -- Python ----------------------------------------------------------------------------------------


def test_python_text() -> None:
    sch, (c,), ((i, j, k),) = start(matmul, "C")
    v, w = sch.sample_perfect_tile(k, 2, 4, decision=[3, 4])
    sch.split(k, [None, w])
    sch.annotate(c, "a", "b'\"\n")
    assert sch.trace.as_python() == (
        "def apply_trace(sch):\n"
        '    b0 = sch.get_block(name="C", func_name=None)\n'
        "    l1, l2, l3 = sch.get_loops(block=b0)\n"
        "    v4, v5 = sch.sample_perfect_tile(loop=l3, n=2, max_innermost_factor=4, decision=[3, 4])\n"
        "    l6, l7 = sch.split(loop=l3, factors=[None, v5], preserve_unit_iters=True, "
        "disable_predication=False)\n"
        '    sch.annotate(block_or_loop=b0, ann_key="a", ann_val="b\'\\"\\n", replace=False)\n'
    )
    assert Trace().as_python() == "def apply_trace(sch):\n    pass\n" == str(Trace())


def test_conditions_are_python_that_builds_them() -> None:
    """Python's own `==`, `and` and `not` would be evaluated on the handles at once."""
    sch, _, ((i, j, k),) = start(matmul, "C")
    v, w = sch.sample_perfect_tile(k, 2, 4, decision=[3, 4])
    even = compare(EQ, w % 2, 0)
    for condition in (even, logical_and(even, v < 5), Not(compare(EQ, v, w))):
        sch.require(condition)
    check_trace(matmul, sch)
    text = sch.trace.as_python()
    assert "condition=T.And(T.EQ(v5 % 2, 0), v4 < 5)" in text and "T.Not(T.EQ(v4, v5))" in text
