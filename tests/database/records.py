"""Records for the tests of the database floor."""

from __future__ import annotations

from metasched.database.record import Record
from metasched.target import Target

HASWELL = Target.of("llvm -mcpu=haswell -num-cores=4 -mtriple=x86_64-unknown-linux-gnu")
CASCADE = Target.of("llvm -mcpu=cascadelake -num-cores=4 -mtriple=x86_64-unknown-linux-gnu")


def record(
    seconds: float = 0.5,
    *,
    workload: str = "w1",
    script: str = "",
    target: Target = HASWELL,
    **fields,
):
    """A correct record with one sample, fields replaced as given."""
    values = {
        "workload_hash": workload, "workload": script or f"def {workload}():\n    pass",
        "target": target.to_json(), "samples": [seconds], "candidate_key": f"k{seconds}",
        "trace": [["split", 1, [2, None]]], **fields,
    }  # fmt: skip
    return Record(**values)
