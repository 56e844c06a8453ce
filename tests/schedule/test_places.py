"""Every refusal in the analyses and primitives is reached by a test on its message."""

from __future__ import annotations

import places
import pytest

from metasched.schedule.advice import ADVICE


def test_every_place_is_reached() -> None:
    """Runs after all other tests; passes if some tests were left out of the run.

    Where two processes share the whole run, conftest.py asks them together at its end.
    """
    if not places.whole_run:
        pytest.skip("only a part of the tests runs in this process; two of them are asked together")
    assert not [str(place) for place in places.unreached()]


def test_every_place_says_what_to_do() -> None:
    """By a hint of its own, or by the row of its reason."""
    without = [p for p in places.places() if p.reason is not None and not p.hint]
    assert not [str(place) for place in without if place.reason not in ADVICE]


def test_every_row_of_advice_is_for_a_refusal() -> None:
    files = (p for p in places.SOURCE.rglob("*.py") if p.name != "advice.py")
    source = "".join(path.read_text(encoding="utf-8") for path in files)
    made = {f"{what}-outside" for what in ("consumer", "producer")}  # of compute_at
    assert not [reason for reason in ADVICE if f'"{reason}"' not in source and reason not in made]
