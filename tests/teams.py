"""The options `--threads` and `--runs` of the long runs: races show in few of many calls.

python -m tests.space.fuzz --kind kinds --threads 4 --runs 5
"""

from __future__ import annotations

import argparse
import os
from dataclasses import replace

from metasched.codegen.openmp import openmp_runtime
from metasched.target import Target

RUNS = 1
"""How often each kernel is called on the same data."""
_threads = 0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the two options to those of a driver."""
    parser.add_argument("--threads", type=int, default=0, help="threads of each kernel")
    parser.add_argument("--runs", type=int, default=1, help="how often each kernel is called")


def use(options: argparse.Namespace) -> None:
    """Call each kernel as the options say, with more threads than cores where they ask for more."""
    global RUNS, _threads
    RUNS, _threads = options.runs, options.threads
    runtime = openmp_runtime()
    if _threads and runtime is not None:
        runtime.library.omp_set_num_threads(_threads)
        os.environ["OMP_NUM_THREADS"] = str(_threads)  # of processes that start later


def with_threads(target: Target) -> Target:
    """The target with cores for the threads that were asked for."""
    return replace(target, num_cores=_threads) if _threads else target
