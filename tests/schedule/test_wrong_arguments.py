"""Arguments of a wrong type: the random machine also tries each step with wrong arguments.

A wrong argument for a loop, a number or a name is refused by a ScheduleError that leaves
the schedule unchanged, or is accepted and can be stored. No other exception is raised.
"""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import pytest
from oracle import check_refused, picture
from schedule.machine import Player, operations, program, recipe
from schedule.programs import matmul, symbolic

from metasched.errors import ScheduleError
from metasched.ir.expr import FloatImm, IntImm, Var
from metasched.ir.verify import verify
from metasched.schedule.instruction import PRIMITIVES, InstructionKind
from metasched.schedule.schedule import Schedule

OTHER = Schedule(matmul)
WRONG: list[Any] = [
    None, "", "x", b"x", 1.5, float("nan"), True, -1, 0, 10**30, -(10**30), [], [None], [[1]], (),
    {}, {"a": 1}, {1: 2}, np.int64(2), np.float32(2), np.zeros(2), object(), int, Var("q"),
    OTHER.get_block("C"), OTHER.get_loops("C")[0], IntImm("int32", 2), IntImm("int64", 2),
    FloatImm("float32", 2.0), Var("h", "handle"), lambda: 1, lambda *i: None, lambda *i: ["x"],
    lambda i: i, [1.5], ["C"], [True], range(3), {1, 2}, [10**30], "shared", "float32",
    ("write", 0), ("read", 10**9), ("both", 0), ("write",), ("write", "x"),
]  # fmt: skip
EACH = 1  # calls of a primitive that are tried


class Misused(Schedule):
    """A schedule whose every step is tried with wrong arguments first, on copies."""

    tried: collections.Counter[str]

    def _run(self, kind: InstructionKind, args: Any, kwargs: dict[str, Any]) -> Any:
        if self.tried[kind.name] < EACH:
            self.tried[kind.name] += 1
            values, _ = kind.bind(args, kwargs)
            for position, param in enumerate(kind.params):
                value = values[position]
                within = [[*value[:-1], w] for w in WRONG] if isinstance(value, list) else []
                for wrong in (*WRONG, *within):
                    given = list(values)
                    given[position] = (wrong,) if param.variadic else wrong
                    misuse(self, kind, given, None)
            if kind.drawn is not None:
                for wrong in WRONG:
                    misuse(self, kind, list(values), wrong)
        return super()._run(kind, args, kwargs)


def misuse(sch: Schedule, kind: InstructionKind, values: list[Any], decision: Any) -> None:
    trial = Schedule.copy(sch)
    before = picture(trial)
    args: list[Any] = []
    kwargs: dict[str, Any] = {} if kind.drawn is None else {"decision": decision}
    for param, value in zip(kind.params, values, strict=True):
        if param.variadic:
            args = list(value)
        else:
            kwargs[param.name] = value
    try:
        Schedule._run(trial, kind, args, kwargs)
    except ScheduleError as error:
        assert str(error) and picture(trial) == before
        return
    verify(trial.mod, closed=True)
    free = {p.name for p in kind.params if p.free}  # holds any data, also what cannot be stored
    if not free:
        trial.trace.to_json()


@pytest.mark.parametrize("part", range(4))
def test_no_step_lets_an_error_of_python_out(part: int) -> None:
    tried: collections.Counter[str] = collections.Counter()
    names = sorted(PRIMITIVES.names())
    mine = {name for n, name in enumerate(names) if n % 4 == part}
    tried.update({name: EACH for name in names if name not in mine})
    number, ops = 0, operations()
    while missing := [name for name in mine if tried[name] < EACH]:
        assert number < 1000, f"no operation of the random machine plays {missing}"
        sch = Misused(program(number), seed=number)
        sch.tried = tried
        player = Player(sch)
        for name, numbers in recipe(number, ops=ops):
            player.numbers = list(numbers)
            try:
                ops[name][1](player)
            except Exception as error:  # refused, or nothing to do
                if not isinstance(error, ScheduleError) and type(error).__name__ != "_Nothing":
                    raise
        number += 1


def test_numbers_of_numpy_are_numbers() -> None:
    sch = Schedule(matmul)
    i, _, k = sch.get_loops("C")
    sch.split(i, [None, np.int64(4)])
    sch.rfactor(k, np.int32(0))
    assert sch.trace.entries[-1].values[1] == 0
    assert type(sch.trace.entries[-1].values[1]) is int
    sch.trace.to_json()


def test_the_argument_is_named() -> None:
    sch = Schedule(matmul)
    i, j, k = sch.get_loops("C")
    slug = "wrong-argument"
    check_refused(sch, lambda: sch.cache_read("C", 0, "local", [i]), slug, "consumer_blocks takes")
    check_refused(sch, lambda: sch.split(i, {4}), slug, "factors holds set")
    check_refused(sch, lambda: sch.annotate(i, {1: 2}, 0), slug, "ann_key has the key 1")
    check_refused(sch, lambda: sch.split(i, [10**30, 2]), slug, "does not fit in int32")
    check_refused(
        sch, lambda: sch.sample_perfect_tile(i, 2, decision=1.5), slug, "decision takes .*, not"
    )
    other = Schedule(symbolic)
    step = lambda: sch.annotate(k, "key", other.get_loops("C")[0])  # noqa: E731
    check_refused(sch, step, "unknown-handle", "belongs to another schedule")


def test_a_padding_value_mentions_nothing_unknown() -> None:
    from schedule.programs import elementwise

    sch = Schedule(elementwise)
    strange = Var("q", "float32")
    step = lambda: sch.transform_layout("B", "B", lambda i, j: (i // 5, j, i % 5), strange)  # noqa: E731
    check_refused(sch, step, "bad-pad-value", "mentions q")


def test_maps_take_indices_by_keyword() -> None:
    from schedule.programs import elementwise

    sch = Schedule(elementwise, check=True)
    sch.transform_layout("B", "B", lambda *i, k: [*i, k // 4, k % 4])
    same = Schedule(elementwise)
    same.transform_layout("B", "B", lambda i, j: [i, j // 4, j % 4])
    assert sch.script() == same.script()
    step = lambda: sch.transform_layout("C", "C", lambda **i: 0)  # noqa: E731
    check_refused(sch, step, "bad-index-map", "stands for no indices")
