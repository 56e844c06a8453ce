"""Mutants are replayed without proofs; what is chosen of them is proved before it is built."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from metasched.database.store import Store
from metasched.errors import ScheduleError
from metasched.ir.stmt import ForKind
from metasched.kinds import default_mutators, default_space
from metasched.measure.candidate import Candidate
from metasched.measure.replay import ReplayRunner
from metasched.search.draft import Draft
from metasched.search.population import CandidateFactory
from metasched.search.replaying import Replayer
from metasched.space.generate import SpaceGenerator
from metasched.tune import STORE, tune
from tests.search.tasks import TARGET, matmul


class Parts:
    """A module that cuts the reduction into parallel parts: legal for one of them, decision 0."""

    name = "parts"

    def __call__(self, sch, block):
        if sch.get(block).name == "Z":
            _, i, _, k = sch.get_loops(block)
            parts = sch.sample_categorical([1, 2, 4], [0.5, 0.25, 0.25], decision=0)
            first, _ = sch.split(k, [parts, None])
            sch.parallel(first)
            sch.unroll(sch.split(i, sch.sample_perfect_tile(i, n=2))[1])
        return [sch]


SPACE = SpaceGenerator((Parts(),), (), default_mutators(TARGET))


def illegal(factory: CandidateFactory):
    """A member of the space that no proof admits, as the search asks for it."""
    trace = factory.spaces[0]
    position = trace.sampling()[0][0]
    return factory.replay(trace.with_decision(position, 1), 0)


def test_a_chosen_program_is_proved_and_its_space_no_longer_trusted():
    shop = CandidateFactory(matmul(16), TARGET, SPACE, 0)
    one = illegal(shop)
    assert one is not None and one.vector.any()
    with pytest.raises(ScheduleError, match="different iterations of loop i3_0 may touch"):
        _ = one.schedule
    good = shop.replay(shop.spaces[0], 0)
    assert shop.admits(good) and not shop.survival.reasons
    assert not shop.admits(one)
    assert shop.survival.reasons == {"carried-reduction": 1} and shop.survival.survived == 1
    assert illegal(shop) is None and shop.replay(shop.spaces[0], 0) is not None


def test_no_illegal_program_is_measured(tmp_path):
    kinds = []

    def cost(candidate: Candidate) -> float:
        kinds.append([n for n in candidate.module.script().splitlines() if "T.parallel" in n])
        return 1.0 + int(candidate.key[:4], 16)

    result = tune(
        matmul(16), target=TARGET, space=SPACE, trials=12, seed=0, work_dir=tmp_path,
        runner=lambda f, t: ReplayRunner(cost=cost),
    )  # fmt: skip
    assert result.failed == 0 and result.trials == len(kinds) > 3
    assert not any("T.parallel(2)" in line or "T.parallel(4)" in line for n in kinds for line in n)
    with Store(tmp_path / STORE) as store:
        assert all(record.ok for record in store.all())


@dataclass(frozen=True)
class Stumbles:
    """A postproc that takes a program without some kind of loops for granted."""

    kind: ForKind
    name: ClassVar[str] = "stumbles"

    def __call__(self, sch, target):
        loops = [sch.get(loop) for loop in sch.get_loops(sch.get_block("Z"))]
        assert not any(n.kind is self.kind and n.extent.value > 1 for n in loops)


def stumbling(kind: ForKind) -> CandidateFactory:
    space = SpaceGenerator(SPACE.modules, (Stumbles(kind),))
    return CandidateFactory(matmul(16), TARGET, space, 0)


def test_a_step_that_fails_is_refused_or_reported_by_legality():
    shop = stumbling(ForKind.PARALLEL)
    assert illegal(shop) is None and shop.survival.reasons == {"carried-reduction": 1}
    assert shop.replay(shop.spaces[0], 0) is not None
    shop = stumbling(ForKind.SERIAL)
    with pytest.warns(UserWarning, match="postproc stumbles raised AssertionError"):
        assert shop.replay(shop.spaces[0], 0) is None
    (slug,) = shop.survival.reasons
    assert slug.startswith("postproc stumbles raised AssertionError")


def test_a_program_is_the_same_with_proofs_and_without():
    shop = CandidateFactory(matmul(32), TARGET, default_space(TARGET), 0)
    skipping, proving = (
        Replayer(shop.base, shop.spaces, shop.generator.postprocs, TARGET) for _ in range(2)
    )
    for space in range(len(shop.spaces)):
        draft = Draft(shop.random_member(space, 1).trace, 0)
        rows = draft.draw(2000, np.random.default_rng(0))
        for n in range(10):
            decisions = [e.decision for _, e in draft.decoded(rows, n).sampling()]
            a = skipping.summary_of((space, decisions, 0, True))
            b = proving.summary_of((space, decisions, 0, False))
            assert (a.key, a.decisions, a.domains) == (b.key, b.decisions, b.domains)
            assert np.array_equal(a.vector, b.vector)


def test_only_postprocs_that_try_nothing_are_trusted():
    seen = []

    @dataclass(frozen=True)
    class Look:
        name: str
        tries: bool

        def __call__(self, sch, target):
            seen.append((self.name, sch.state.skip_legality_checks))

    class Plain:
        name = "plain"

        def __call__(self, sch, target):
            seen.append((self.name, sch.state.skip_legality_checks))

    shop = CandidateFactory(matmul(32), TARGET, default_space(TARGET), 0)
    looks = (Look("sure", False), Plain(), Look("tries", True))
    replayer = Replayer(shop.base, shop.spaces, looks, TARGET)
    decisions = [entry.decision for _, entry in shop.random_member(0, 1).trace.sampling()]
    sch = replayer.member(0, decisions, 0, skip_checks=True)
    assert seen == [("sure", True), ("plain", False), ("tries", False)]
    assert not sch.state.skip_legality_checks
    del seen[:]
    replayer.member(0, decisions, 0)
    assert seen == [("sure", False), ("plain", False), ("tries", False)]
