"""The main job: 64 trials of the 1024^3 float32 matrix product, as `metasched tune` does it.

The aim on 2 cores: 30 s of wall time in all, then 15; at least 45 % of the machine's FMA peak, then
as fast as OpenBLAS.
"""

from benchmarks.tuning import told, tuned


def test_main_job(tmp_path, tell, quick):
    shape, trials = ("1,64,64,64", 8) if quick else ("1,1024,1024,1024", 64)
    data = tuned(tmp_path / "work", "gmm", shape, trials)
    for line in told(data):
        tell(line)
    tell(
        f"    aims: {data['wall_seconds'] / 30:.2f} of 30 s, "
        f"{data['best']['peak_fraction'] / 0.45:.2f} of 45 % of peak, "
        f"{data['wall_seconds'] / trials / 0.2:.2f} of 0.2 s a trial"
    )
    assert data["trials"] == trials
    assert data["speedup_over_default"] >= 1.0
