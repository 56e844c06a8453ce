"""Kernels in this process: the memory of their temporaries."""

from __future__ import annotations

import subprocess
import sys

CALLS = """
import resource
import numpy as np
from metasched.runtime.build import build
from metasched.script import parse

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

stages = "".join(
    f"    for i in range(300000):\\n"
    f"        with T.block('{b}'):\\n"
    f"            v = T.axis.spatial(300000, i)\\n"
    f"            {b}[v] = {a}[v] + 1.0\\n"
    for a, b in zip("XPQRS", "PQRSY")
)
buffers = "".join(f"    {b} = T.alloc_buffer((300000,), 'float32')\\n" for b in "PQRS")
kernel = build(parse(
    "@T.prim_func\\ndef f(X: T.Buffer((300000,), 'float32'), Y: T.Buffer((300000,), 'float32')):\\n"
    + buffers + stages
), target={"kind": "cpu", "num_cores": 1})
x, y = np.zeros(300000, "float32"), np.zeros(300000, "float32")
counts = []
for _ in range(8):
    before = faults()
    kernel(x, y)
    counts.append(faults() - before)
assert y[0] == 5.0
print(counts[0], min(counts[1:]))
"""


def test_temporaries_keep_their_pages_from_call_to_call():
    run = subprocess.run([sys.executable, "-c", CALLS], capture_output=True, text=True, check=True)
    first, later = map(int, run.stdout.split())
    assert first > 4 * 1_200_000 // 4096
    assert later < 50
