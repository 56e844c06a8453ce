"""The thirty kernels of PolyBench/C 4.2 as loops, at their medium size (Pouchet and Yuki 2016).

Each kernel is written as PolyBench has it: triangular loops, updates in place, several results.
A builder takes the shape and the type of the numbers; the reference overwrites the same arrays.
"""

from __future__ import annotations

from metasched.frontend.workload import Workload
from metasched.workloads.polybench import blas, data_mining, kernels, medley, solvers, stencils

WORKLOADS: tuple[Workload, ...] = tuple(
    workload
    for family in (blas, kernels, solvers, data_mining, stencils, medley)
    for workload in family.WORKLOADS
)
