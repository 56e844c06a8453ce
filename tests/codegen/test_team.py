"""One team for all steps of a serial loop: equal results, barriers, failures, what is left out."""

from __future__ import annotations

import contextlib
import os
import random
import time

import numpy as np
import pytest
from codegen.kernels import agree, build, call

HEAD = """
@T.prim_func
def main(A: T.Buffer((64,), "int32"), B: T.Buffer((64,), "int32"), N: T.Buffer((1,), "int32")):
"""


def arrays() -> list[np.ndarray]:
    return [*(np.arange(64, dtype="int32") * k for k in (1, 3)), np.array([5], "int32")]


def counts(text: str) -> tuple[int, int]:
    """Teams that are started, and barriers, in the code of a program that agrees."""
    code = agree(HEAD + text, *arrays()).llvm_ir
    return code.count("call void @GOMP_parallel"), code.count("call void @metasched.barrier")


def test_sweeps_share_a_team() -> None:
    assert counts("""
    for t in range(20):
        for i in T.parallel(1, 63):
            B[i] = A[i - 1] + A[i] + A[i + 1]
        for i in T.parallel(1, 63):
            A[i] = B[i - 1] + B[i] + B[i + 1]
""") == (1, 2)


def test_lanes_of_a_vector_start_no_team() -> None:
    assert counts("""
    for j in T.vectorized(4):
        for t in range(3):
            for i in T.parallel(8):
                B[i * 4 + j] = B[i * 4 + j] * 2 + A[i * 4 + j]
""") == (0, 0)


def test_independent_sweeps_need_no_barrier_between() -> None:
    assert counts("""
    for t in range(20):
        for i in T.parallel(64):
            A[i] = A[i] + 1 + N[0]
        for i in T.parallel(64):
            B[63 - i] = B[63 - i] * 3 + N[0]
""") == (1, 1)


def test_one_thread_runs_what_is_not_parallel() -> None:
    assert counts("""
    for t in range(20):
        N[0] = N[0] + A[t]
        for i in T.parallel(64):
            A[i] = A[i] + N[0]
        for i in range(1, 64):
            B[i] = B[i - 1] + A[i]
""") == (1, 3)


def test_headers_around_parallel_loops_run_on_all_threads() -> None:
    assert (
        counts("""
    for t in range(6):
        if t % 2 == 0:
            for s in range(t):
                for i in T.parallel(s * 8 + 1):
                    A[i] = A[i] + B[i + 1] + s
        else:
            for i in T.parallel(1):
                B[i] = A[i + 7] + t
        for i in T.parallel(64):
            B[i] = B[i] + A[i]
""")[0]
        == 1
    )


@pytest.mark.parametrize(
    "text",
    [
        """
    for t in range(4):
        for s in range(N[0]):
            for i in T.parallel(64):
                A[i] = A[i] + B[i]
        N[0] = N[0] - 1
""",
        """
    for t in range(4):
        C = T.allocate([64], "int32", "global")
        for i in T.parallel(64):
            C[i] = A[63 - i]
        for i in T.parallel(64):
            A[i] = C[i] + 1
""",
        """
    for t in range(4):
        assert N[0] > 0, "positive"
        for i in T.parallel(64):
            A[i] = A[i] + N[0]
""",
        """
    for t in range(4):
        for i in T.parallel(64):
            A[i] = A[i] + N[0]
        if t == 2:
            break
""",
    ],
    ids=["bounds that read memory", "shared memory", "assertion alone", "break"],
)
def test_other_loops_start_a_team_each_time(text: str) -> None:
    outer, barriers = counts(text)
    assert outer >= 1
    assert barriers == 0 or "N[0])" in text  # the loop inside such bounds has a team of its own


def test_a_failed_assertion_in_a_share_is_reported() -> None:
    text = (
        HEAD
        + """
    for t in range(50):
        for i in T.parallel(64):
            assert A[i] < 40 + 64, "small"
            A[i] = A[i] + 1
        for i in T.parallel(64):
            B[i] = B[i] + A[63 - i]
"""
    )
    compiled = build(text)
    data = arrays()
    data[0][:] = 0
    assert call(compiled, *data) == 0
    data[0][63] = 80
    assert compiled.signature.failure(call(compiled, *data)) == "assertion failed: small"
    assert compiled.llvm_ir.count("call void @GOMP_parallel") == 1


def sweep(r: random.Random, depth: int, indent: str) -> list[str]:
    """A random statement of a time step, as lines."""
    kind = r.choice(["parallel", "parallel", "alone", "prefix", "if", "loop"][: 4 if depth else 6])
    x, y = r.choice(["AB", "BA", "AA", "BB"])
    if kind == "parallel":
        low, high = r.randint(0, 3), r.randint(50, 60)
        other = f"{y}[i]" if x == y else f"{y}[i + {r.randint(0, 3)}]"
        body = f"{x}[i] = {x}[i] + {other} * {r.randint(1, 3)} + N[0]"
        return [f"{indent}for i in T.parallel({low}, {high}):", f"{indent}    {body}"]
    if kind == "alone":
        return [f"{indent}N[0] = (N[0] + {x}[t]) % 7"]
    if kind == "prefix":
        body = f"{x}[i] = {x}[i - 1] + {y}[i]"
        return [f"{indent}for i in range(1, 64):", f"{indent}    {body}"]
    inside = [line for _ in range(2) for line in sweep(r, depth + 1, indent + "    ")]
    head = (
        f"if t % {r.randint(2, 3)} == 0:" if kind == "if" else f"for s in range({r.randint(0, 3)}):"
    )
    return [indent + head, *inside]


@pytest.mark.parametrize("seed", range(12))
def test_random_steps_agree(seed: int) -> None:
    r = random.Random(seed)
    lines = ["    for t in range(30):"]
    for _ in range(r.randint(2, 5)):
        lines += sweep(r, 0, "        ")
    lines += ["        for i in T.parallel(64):", "            A[i] = A[i] % 1000 + B[i] % 1000"]
    with np.errstate(over="ignore"):
        code = agree(HEAD + "\n".join(lines) + "\n", *arrays()).llvm_ir
    assert code.count("call void @GOMP_parallel") == 1


def test_threads_on_one_processor_sleep_at_barriers() -> None:
    compiled = build(
        HEAD
        + """
    for t in range(200):
        for i in T.parallel(1, 63):
            B[i] = A[i - 1] + A[i + 1]
        for i in T.parallel(1, 63):
            A[i] = B[i - 1] - B[i + 1]
"""
    )
    data = arrays()
    assert call(compiled, *data) == 0
    masks = {int(task): os.sched_getaffinity(int(task)) for task in os.listdir("/proc/self/task")}
    try:
        for task in masks:
            os.sched_setaffinity(task, {min(masks[task])})
        start = time.process_time()
        assert call(compiled, *data) == 0
        spent = time.process_time() - start
    finally:
        for task, mask in masks.items():
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(task, mask)
    assert spent < 0.4  # 0.02 s; 1.6 s where threads wait in a loop
