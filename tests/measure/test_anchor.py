"""What times are measured by: the anchor, and what a calibration set says of a new process."""

import pytest

from metasched.measure.anchor import TimeReference, rounds_of_calibration, spread


def test_a_calibration_set_says_what_the_anchor_takes_in_another_process():
    """There the anchor runs a tenth slower beside the others; one of these runs slower as well."""
    reference = TimeReference(("anchor", 2.0), [("a", 3.0), ("b", 4.0), ("c", 5.0)])
    assert reference.beside == ["anchor", "a", "b", "c"]
    reference.calibrate([(2.2,) * 4, (3.0,) * 4, (4.0,) * 4, (6.0,) * 4])
    assert reference.anchor == ("anchor", pytest.approx(2.2))


def test_without_an_anchor_one_of_the_calibration_set_becomes_it():
    reference = TimeReference(calibration=[("a", 3.0), ("b", 4.0), ("c", 5.0)])
    # a machine that is twice as fast now: the unit of the earlier run stays
    reference.calibrate([(1.5,) * 4, (1.5,) * 4, (2.0,) * 4, (2.5,) * 4])
    assert reference.anchor == ("a", pytest.approx(3.0)) and reference.unit == pytest.approx(0.5)
    assert reference.by_the_clock == ("a", pytest.approx(1.5))


def test_a_new_process_anchors_on_the_fastest_known_program():
    reference = TimeReference(("anchor", 2.0), [("a", 1.0), ("b", 1.5), ("c", 1.8)])
    reference.calibrate([(4.0,) * 4, (2.5,) * 4, (3.0,) * 4, (3.6,) * 4])
    assert reference.unit == pytest.approx(2.0)  # a machine that is half as fast now
    assert reference.anchor == ("a", pytest.approx(1.25)) and reference.by_the_clock[1] == 2.5


def test_programs_that_gave_up_turns_do_not_calibrate():
    reference = TimeReference(("anchor", 2.0), [("a", 3.0), ("b", 4.0)])
    reference.calibrate([(2.2,) * 4, (3.0,) * 4, (80.0,)])
    assert reference.anchor == ("anchor", pytest.approx(2.2))
    reference.calibrate([(90.0,), (3.0,) * 4, (4.0,) * 4])
    assert reference.anchor == ("anchor", pytest.approx(2.2))
    reference.calibrate([(2.5,), (3.0,), (4.0,)])  # runs that warm up, no turns
    assert reference.anchor == ("anchor", pytest.approx(2.2))


def test_a_calibration_set_stays_until_it_is_far_behind():
    reference = TimeReference()
    reference.choose([])
    assert reference.by_the_clock is None
    assert not reference.calibration and not reference.beside
    reference.choose([("a", 3.0), ("b", 4.0)])
    reference.choose([("c", 2.6), ("d", 2.7)])
    assert [program for program, _ in reference.calibration] == ["a", "b"]
    reference.choose([("c", 1.5), ("d", 1.6)])
    assert [program for program, _ in reference.calibration] == ["c", "d"]


def test_a_calibration_set_is_not_the_fastest_alone():
    known = [(n, 1.0 + n / 100) for n in range(100)]
    some = spread(reversed(known))
    assert [n for n, _ in some] == [3, 10, 17, 23, 30, 37]  # of 41 within 1.4 times the best
    assert spread(known[:2]) == known[:2] and spread([]) == []


def test_a_calibration_set_of_slow_programs_takes_few_turns():
    assert rounds_of_calibration([1e-5] * 7, 2.5e-3) == 12
    assert rounds_of_calibration([1.0] * 7, 2.5e-3) == 4


def test_short_programs_are_timed_again_beside_the_anchor():
    reference = TimeReference()
    assert reference.turns_with(6, 2.5e-3) == (0, 0) and reference.beside_anchor([]) == []
    reference.anchor = "anchor", 50e-6
    assert reference.turns_with(6, 2.5e-3) == (6, 8)
    assert reference.turns_with(1, 2.5e-3) == (1, 30) and reference.turns_with(0, 2.5e-3) == (0, 0)
    reference.anchor = "anchor", 7e-3
    assert reference.turns_with(6, 2.5e-3) == (3, 5)
    reference.anchor = "anchor", 20e-3
    assert reference.turns_with(6, 2.5e-3) == (0, 0)
    reference.unit = 0.1  # a process in which all programs run ten times as fast
    assert reference.turns_with(6, 2.5e-3) == (6, 8)
    assert reference.beside_anchor([(2e-3,) * 3, (1e-3,) * 3, (3e-3,) * 3]) == pytest.approx(
        [10e-3, 30e-3]
    )
    assert reference.beside_anchor([(9.0,), (1e-3,) * 3, (3e-3,) * 3]) == []
