"""`metasched tune` as a user runs it, in a process of its own, and its figures as text."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any


def tuned(folder: Path, op: str, shape: str | None, trials: int) -> dict[str, Any]:
    """What `metasched tune --json` says of a fresh work folder."""
    command = [sys.executable, "-m", "metasched.cli", "tune", op, "--json", "--seed", "0"]
    command += ["--trials", str(trials), "--work-dir", str(folder)]
    command += ["--shape", shape] if shape else []
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    data: dict[str, Any] = json.loads(done.stdout)
    return data


def told(data: dict[str, Any]) -> list[str]:
    """The figures of one run, as ratios within it."""
    best, trials = data["best"], data["trials"]
    seconds = best["seconds"]
    against = {
        "default": data["default_seconds"], "unscheduled": data["unscheduled_seconds"],
        "NumPy": data["numpy_seconds"],
    }  # fmt: skip
    ratios = ", ".join(f"{v / seconds:.2f} x {name}" for name, v in against.items() if v)
    phases = ", ".join(f"{name} {value:.1f}" for name, value in data["phases"].items())
    shape = ",".join(map(str, data["shape"]))
    return [
        f"{data['workload']} {shape}: {best['gflops']:.1f} GFLOP/s, "
        f"{100 * best['peak_fraction']:.0f} % of the FMA peak, {ratios}",
        f"    {trials} trials ({data['failed']} failed) in {data['wall_seconds']:.1f} s, "
        f"{data['wall_seconds'] / trials:.2f} s a trial, "
        f"{trials / data['wall_seconds']:.1f} trials a second ({phases}); "
        f"{100 * data['survival']:.0f} % of the replays survived",
    ]
