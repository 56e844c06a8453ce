"""Types of `metasched.workloads` for checkouts, where its folder stands beside the package.

Type checkers do not find the folder there; of an installed package they read the folder itself.
"""

from metasched.frontend.workload import Workload as Workload

SUITE: tuple[str, ...]
LOW_PRECISION: tuple[str, ...]
NORMALISATIONS: tuple[str, ...]
REDUCTIONS: tuple[str, ...]
STENCILS: tuple[str, ...]
POLYBENCH: tuple[str, ...]
SUITES: dict[str, tuple[str, ...]]

def get(name: str) -> Workload: ...
def names() -> list[str]: ...
def register(name: str, item: Workload, *, override: bool = False) -> Workload: ...
