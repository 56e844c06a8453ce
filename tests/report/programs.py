"""A small shape of each operator and of those of low precision, and a made-up event log."""

from __future__ import annotations

import json
from pathlib import Path

from metasched.workloads import LOW_PRECISION

SMALL = {
    "c1d": (1, 16, 8, 8, 3, 2, 1), "c2d": (1, 7, 7, 8, 12, 3, 2, 1),
    "c3d": (1, 4, 5, 5, 4, 8, 3, 2, 1), "gmm": (2, 8, 12, 16),
    "grp": (1, 7, 7, 8, 16, 3, 2, 1, 2, 4), "dil": (1, 9, 9, 4, 8, 3, 1, 1, 2),
    "dep": (1, 7, 7, 8, 3, 2, 1), "t2d": (1, 4, 5, 8, 6, 4, 2, 1), "cap": (1, 5, 5, 4, 3, 3, 2, 1),
    "nrm": (2, 8, 8), "sfm": (4, 16), "cbr": (1, 7, 7, 8, 12, 3, 2, 1), "tbg": (1, 8, 3, 4),
    "argmax": (5, 6), "mean_variance": (3, 6),
    "attention": (2, 6, 4), "causal": (2, 6, 4), "lse": (3, 6), "lnm": (4, 5, 6), "rms": (3, 6),
}  # fmt: skip

LOW_SMALL = {op: SMALL[op.removeprefix("q").partition("_")[0]] for op in LOW_PRECISION}


def trial(seconds: float | None, elapsed: float, predicted: float | None = None, **fields) -> dict:
    """One TrialDone of the task "gmm"."""
    return {
        "event": "TrialDone", "task": "gmm", "index": 0, "seconds": seconds, "message": "",
        "status": "ok" if seconds else "run_crash", "best": None, "trials": 0, "failed": 0,
        "elapsed": elapsed, "predicted": predicted, **fields,
    }  # fmt: skip


def started(workload: str = "aa", **fields) -> dict:
    """The TaskStarted of "gmm"."""
    return {
        "event": "TaskStarted", "task": "gmm", "flops": 2e6, "budget": 8, "known": 0, "spaces": 1,
        "workload": workload, **fields,
    }  # fmt: skip


def round_done(**phases: float) -> dict:
    return {"event": "RoundDone", "task": "gmm", "round": 1, "phases": phases}


def write_log(path: Path, events: list[dict]) -> Path:
    path.write_text("".join(json.dumps(e) + "\n" for e in events))
    return path
