"""Every refusal in the analyses and primitives is reached by a test on its message."""

from __future__ import annotations

import places
import pytest


def test_every_place_is_reached() -> None:
    """Runs after all other tests; passes if some tests were left out of the run.

    Where two processes share the whole run, conftest.py asks them together at its end.
    """
    if not places.whole_run:
        pytest.skip("only a part of the tests runs in this process; two of them are asked together")
    assert not [str(place) for place in places.unreached()]
