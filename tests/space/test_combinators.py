"""chain, choose, attempt, each_block, generators and their order."""

from __future__ import annotations

import pytest
from space.candidates import tiny

from metasched.errors import MetaschedError, ScheduleError
from metasched.ir.visit import blocks_of
from metasched.schedule.schedule import Schedule
from metasched.script import parse
from metasched.space.combinators import attempt, chain, choose, each_block
from metasched.space.generate import (
    MAX_SPACES,
    MIN_SPACES,
    ScheduleFn,
    SpaceGenerator,
    Union,
    visit_order,
)
from metasched.space.module import ScheduleModule
from metasched.space.modules.auto_inline import AutoInline
from metasched.target import Target


def note(key):
    """A module that annotates."""

    def fn(sch, block):
        sch.annotate(block, key, 1)
        return [sch]

    return ScheduleModule(f"note.{key}", ("cpu",), fn)


def refuse(sch, block):
    sch.annotate(block, "half", 1)
    raise ScheduleError("refuse", "no", "always refused")


REFUSE = ScheduleModule("refuse", ("cpu",), refuse)


def notes(sch, name="Z"):
    return set(sch.get(sch.get_block(name)).annotations)


def test_a_module_whose_every_way_is_refused_says_so_once():
    space = SpaceGenerator((attempt(REFUSE), attempt(note("a"))))
    space.generate(tiny("gmm"), Target.native())
    found = [r for r in space.refusals if r.block == "Z"]
    assert [(r.module, r.refused) for r in found] == [("attempt(refuse)", True)]
    assert found[0].message == "refuse: always refused [no]" and not space.failures
    space.generate(tiny("gmm"), Target.native())
    assert len([r for r in space.refusals if r.block == "Z"]) == 1


def test_a_module_reports_once_how_many_alternatives_it_lost():
    space = SpaceGenerator((choose(attempt(REFUSE), note("a"), note("b")),))
    assert len(space.generate(tiny("gmm"), Target.native())) > 1
    (found,) = [r for r in space.refusals if r.block == "Z"]
    assert (found.lost, found.kept, found.refused) == (1, 2, True)
    assert found.text == (
        f"{found.module} gives up 1 of 3 alternatives on block Z: refuse: always refused [no]"
    )
    both = Union((space, SpaceGenerator((attempt(REFUSE),))))
    both.generate(tiny("gmm"), Target.native())
    text = [r.text for r in both.refusals if r.block == "Z"]
    assert text == [found.text, "attempt(refuse) leaves block Z alone: refuse: always refused [no]"]


def test_chain_runs_one_after_the_other():
    sch = Schedule(tiny("gmm"))
    (after,) = chain(note("a"), note("b"))(sch, sch.get_block("Z"))
    assert notes(after) == {"a", "b"}


def test_choose_offers_each_from_the_same_start():
    sch = Schedule(tiny("gmm"))
    found = choose(note("a"), note("b"))(sch, sch.get_block("Z"))
    assert [notes(s) for s in found] == [{"a"}, {"b"}]


def test_attempt_leaves_the_schedule_alone_on_a_refusal_only():
    sch = Schedule(tiny("gmm"))
    block = sch.get_block("Z")
    assert notes(attempt(REFUSE)(sch, block)[0]) == set()
    with pytest.raises(ZeroDivisionError):
        attempt(ScheduleModule("bad", ("cpu",), lambda s, b: 1 / 0))(sch, block)
    assert attempt(REFUSE).name == "attempt(refuse)"


def test_each_block_visits_the_blocks_below():
    sch = Schedule(tiny("sfm"))
    (after,) = each_block(note("a"))(sch, sch.get_block("root"))
    assert all(notes(after, name) == {"a"} for name in ("max", "exp", "sum", "normalize"))


def test_chain_skips_a_block_that_was_inlined():
    sch = Schedule(tiny("cbr"))
    inline = ScheduleModule("inline", ("cpu",), lambda s, b: [s.compute_inline(b) or s])
    (after,) = chain(inline, note("a"))(sch, sch.get_block("bias"))
    assert "a" not in notes(after, "relu")


def test_blocks_are_visited_consumers_first_and_the_root_last():
    func = tiny("sfm")
    names = {r.block.token: r.block.name for r in blocks_of(func.body)}
    order = [names[t] for t in visit_order(func.body)]
    assert order == ["normalize", "sum", "exp", "max", "root"]


def test_alternatives_multiply_up_to_a_limit():
    two = choose(note("a"), note("b"))
    third = choose(note("c"), note("d"))
    assert len(SpaceGenerator((two, third)).generate(tiny("gmm"))) == 16  # two blocks
    assert len(SpaceGenerator((two,)).generate(tiny("sfm"))) == 32
    many = SpaceGenerator((two, third)).generate(tiny("sfm"))
    assert 0 < len(many) <= MAX_SPACES


def test_the_same_choice_for_all_blocks_is_kept():
    """Of 3 ** 5 alternatives, one with the same note on every block, for each note."""
    three = choose(note("a"), note("b"), note("c"))
    found = SpaceGenerator((three,)).generate(tiny("sfm"))
    texts = [trace.to_json() for trace in found]
    assert len(found) == MAX_SPACES
    for mark in "abc":
        assert any(text.count(f'"{mark}"') == 5 for text in texts)


def test_no_more_blocks_are_visited_than_alternatives_are_kept():
    """Each of 32 alternatives would visit up to 32 more at each block, to be thinned out."""
    two, visits = choose(note("a"), note("b")), []
    counted = ScheduleModule("counted", ("cpu",), lambda s, b: visits.append(b) or [s, s.copy()])
    SpaceGenerator((two, counted)).generate(tiny("sfm"))
    assert len(visits) == MAX_SPACES * 5  # 4 blocks and the root


def test_many_blocks_have_fewer_spaces() -> None:
    """All spaces together hold at most NESTS blocks; MIN_SPACES spaces remain."""
    stages = "".join(
        f"    for i in range(8):\n"
        f'        with T.block("s{n}"):\n'
        f"            vi = T.axis.spatial(8, i)\n"
        f"            B[{n}, vi] = A[vi] + {n}\n"
        for n in range(40)
    )
    buffers = 'A: T.Buffer((8,), "int32"), B: T.Buffer((40, 8), "int32")'
    func = parse(f"@T.prim_func\ndef f({buffers}):\n{stages}")
    assert len(SpaceGenerator((choose(note("a"), note("b")),)).generate(func)) == MIN_SPACES


def test_a_function_is_a_space():
    def in_place(sch):
        sch.annotate(sch.get_block("Z"), "a", 1)

    def alternatives(sch):
        return [sch, sch.copy()]

    assert len(ScheduleFn(in_place).generate(tiny("gmm"))) == 1
    assert len(ScheduleFn(alternatives).generate(tiny("gmm"))) == 1  # the same steps: one space
    with pytest.raises(MetaschedError, match="must return a list of schedules, not int"):
        ScheduleFn(lambda sch: 3).generate(tiny("gmm"))


def test_a_union_concatenates():
    parts = (SpaceGenerator((note("a"),)), SpaceGenerator((note("b"),)))
    assert len(Union(parts).generate(tiny("gmm"))) == 2
    assert Union(parts).postprocs == () and Union(parts).mutators == ()


def leave(sch, block):
    return [sch]


def test_a_combined_module_is_for_the_targets_that_its_parts_are_for():
    gpu = ScheduleModule("gpu", ("cuda",), leave)
    both = ScheduleModule("both", ("cuda", "cpu"), leave)
    for made in (chain(gpu, both), choose(both, gpu), attempt(gpu), each_block(attempt(gpu))):
        assert made.targets == ("cuda",)
    assert set(chain(both, both).targets) == {"cpu", "cuda"}
    every = chain(AutoInline())  # a module with fields is for all
    assert every.suits(Target.native()) and every.suits(Target.of("cuda"))
    cpu = ScheduleModule("cpu", ("cpu",), leave)
    with pytest.raises(MetaschedError, match=r"chain\(cpu, gpu\) are for no target kind"):
        chain(cpu, gpu)
