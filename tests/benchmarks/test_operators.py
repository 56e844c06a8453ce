"""C2D, CBR and SFM, 64 trials each: how much faster than `unscheduled` and than `default`.

The aim: right (each candidate is checked), 20 times faster than unscheduled and 1.5 times faster
than default.
The whole suite beside other libraries is `metasched bench --suite operators`.
"""

import pytest
from benchmarks.tuning import told, tuned

QUICK = {"c2d": "1,7,7,8,16,3,1,1", "cbr": "1,7,7,8,16,3,1,1", "sfm": "32,64"}


@pytest.mark.parametrize("op", QUICK)
def test_operator(op, tmp_path, tell, quick):
    shape, trials = (QUICK[op], 4) if quick else (None, 64)
    data = tuned(tmp_path / "work", op, shape, trials)
    for line in told(data):
        tell(line)
    seconds = data["best"]["seconds"]
    over_unscheduled = data["unscheduled_seconds"] / seconds
    tell(
        f"    aims: {over_unscheduled / 20:.2f} of 20 x unscheduled, "
        f"{data['speedup_over_default'] / 1.5:.2f} of 1.5 x default"
    )
    assert data["speedup_over_default"] >= 1.0
