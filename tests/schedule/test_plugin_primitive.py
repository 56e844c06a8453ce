"""A primitive from a plug-in file works everywhere, without a change in another file."""

from __future__ import annotations

from pathlib import Path

import pytest
from oracle import check_transform
from schedule.machine import (
    Broken,
    Player,
    Tally,
    _Nothing,
    operations,
    play,
    program,
    recipe,
    report,
    require_all_used,
)
from schedule.machine_ways import tried
from schedule.programs import elementwise, matmul

import metasched as ms
from metasched.errors import PluginError, RegistryError
from metasched.registry import load_plugin, taken_back
from metasched.schedule.instruction import OWN_NAMES, PRIMITIVES
from metasched.schedule.schedule import Schedule
from metasched.schedule.state import State

PLUGIN = Path(__file__).parent / "reverse.py"


@pytest.fixture(autouse=True)
def primitives_of_before():
    """Registrations of a test are removed after the test."""
    with taken_back(always=True):
        yield


def test_a_plugin_primitive_is_a_recorded_replayable_method():
    assert load_plugin(PLUGIN) == ("reverse",)
    sch = Schedule(matmul, seed=0, check=True)
    i, j, _ = sch.get_loops("C")
    outer, inner = sch.split(sch.reverse(j), [None, 2])
    sch.reverse(loop=i)
    sch.parallel(outer)
    assert "- 1 - " in sch.script() or " - j" in sch.script()
    assert ".reverse(" in sch.trace.as_python()
    assert "reverse" in dir(sch)
    check_transform(matmul, sch)
    again = Schedule(matmul, seed=1)
    ms.Trace.from_json(sch.trace.to_json()).apply(again)
    assert again.script() == sch.script()


def test_a_result_that_no_trace_could_name_is_refused_when_it_is_made():
    """Such a step was recorded, and the trace file could not be read again."""

    @ms.primitive()
    def same(state: State, loop: ms.LoopRV) -> ms.LoopRV:
        """Give back `loop`."""
        return loop

    @ms.primitive()
    def twice(state: State, loop: ms.LoopRV) -> list[ms.LoopRV]:
        """Give one new loop two times."""
        return [state.new_loop(state.value(loop))] * 2

    sch = Schedule(matmul, seed=0)
    loop = sch.get_loops("C")[0]
    for name in ("same", "twice"):
        message = f"the primitive {name} returns a handle twice, or one that was there before"
        with pytest.raises(PluginError, match=message):
            getattr(sch, name)(loop)
    assert len(sch.trace) == 2
    sch.parallel(loop)


def test_legal_reports_where_a_plugin_primitive_applies():
    load_plugin(PLUGIN)
    sch = Schedule(matmul, seed=0)
    of_i, of_k = (sch.legal(sch.get_loops("C")[n])["reverse"] for n in (0, 2))
    assert of_i is None
    assert "may touch the same element of C (a reduction)" in of_k
    assert "reverse" not in sch.legal("C")
    with pytest.raises(ms.ScheduleError, match="can be reversed"):
        sch.reverse(sch.get_loops("C")[2])


def test_the_random_machine_plays_it():
    load_plugin(PLUGIN)
    ops = {name: op for name, op in operations().items() if name in ("reverse", "split", "fuse")}
    assert "reverse" in ops
    tally = Tally()
    for number in range(60):
        steps = recipe(number, longest=4, ops=ops)
        try:
            play(number, steps, tally)
        except Broken:
            pytest.fail(report(number, steps), pytrace=False)
    assert tally.kinds["reverse"] > 20 and tally.refusals["reverse"] > 2
    assert tally.reasons["reverse: carried-reduction"] > 0


def test_ways_with_other_blocks_and_loops_are_played():
    """Other handles among the arguments of a way are mapped to the recording schedule."""
    played = {"merge", "reorder", "compute_at", "read_at", "blockize"}
    ops = {name: (1, tried(PRIMITIVES.get(name))) for name in played}
    accepted = set()
    for number in range(400):
        sch = Schedule(program(number), seed=0)
        player = Player(sch)
        name, numbers = recipe(number, longest=1, ops=ops)[-1]
        player.numbers = list(numbers)
        try:
            ops[name][1](player)
            accepted.add(name)
        except (_Nothing, ms.ScheduleError):
            continue
        check_transform(program(number), sch, compiled=False)
        if accepted == played:
            return
    raise AssertionError(f"never accepted: {played - accepted}")


def test_a_primitive_that_the_random_machine_never_uses_is_named():
    @ms.primitive()
    def leave(state: object, block: ms.BlockRV) -> None:
        """Change nothing."""

    tally = Tally()
    tally.kinds.update(name for name in PRIMITIVES.names() if name != "leave")
    with pytest.raises(AssertionError, match="never got leave accepted: say by of_loop= or"):
        require_all_used(tally)
    assert "leave" not in operations()


@pytest.mark.parametrize("name", ["undo", "mod", "_run"])
def test_a_primitive_cannot_take_the_place_of_a_method(name):
    def step(state: object) -> None:
        """Change nothing."""

    step.__name__ = name
    with pytest.raises(RegistryError, match="cannot be a method of schedules: rename it"):
        ms.primitive()(step)


def test_the_own_names_of_a_schedule_are_those_it_has():
    sch = Schedule(elementwise, seed=0)
    public = {name for name in dir(sch) if not name.startswith("_")}
    assert public - {*PRIMITIVES.names()} == OWN_NAMES
