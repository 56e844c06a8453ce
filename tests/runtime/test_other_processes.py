"""Kernels and schedules in other processes: forked ones, and those that get a pickle."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

import metasched as ms
from metasched.errors import BuildError, MetaschedError, RegistryError
from metasched.schedule.instruction import PRIMITIVES
from metasched.script import tir as T


def matmul(n):
    @T.prim_func
    def matmul(
        A: T.Buffer((n, n), "float32"),
        B: T.Buffer((n, n), "float32"),
        C: T.Buffer((n, n), "float32"),
    ):
        for i, j, k in T.grid(n, n, n):
            with T.block("C"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    C[vi, vj] = T.float32(0)
                C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]

    return matmul


def scheduled(n=32):
    sch = ms.Schedule(matmul(n), seed=0)
    i, j, _ = sch.get_loops("C")
    _, inner = sch.split(i, sch.sample_perfect_tile(i, n=2))
    sch.parallel(j)
    return sch, inner


def product(kernel, n=32):
    a, b = np.random.default_rng(0).standard_normal((2, n, n), np.float32)
    return kernel(a, b), a @ b


FORKED = """
import os, signal, sys, threading
import numpy as np
import metasched as ms
from metasched.script import tir as T

@T.prim_func
def doubled(A: T.Buffer((64, 64), "float32"), B: T.Buffer((64, 64), "float32")):
    for i in T.parallel(64):
        for j in range(64):
            B[i, j] = A[i, j] + A[i, j]

def right(kernel):
    a = np.arange(4096, dtype=np.float32).reshape(64, 64)
    return np.array_equal(kernel(a), a + a)

kernel = ms.build(doubled)
if sys.argv[1:]:
    kernel.export(sys.argv[1], "doubled")
    kernel = ms.load_exported(sys.argv[1])
assert "GOMP_parallel" in ms.build(doubled).llvm_ir and right(kernel)
child = os.fork()
if child == 0:
    signal.alarm(60)  # the end of a child that waits for ever
    in_a_thread = []
    thread = threading.Thread(target=lambda: in_a_thread.append(right(kernel)))
    thread.start()
    thread.join()
    os._exit(0 if right(kernel) and in_a_thread == [True] else 3)
_, status = os.waitpid(child, 0)
assert status == 0, status
assert right(kernel)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("exported", [False, True])
def test_a_forked_process_runs_parallel_kernels_of_its_parent(exported, tmp_path):
    """libgomp's threads stay with the parent: the child waited for them for ever."""
    folder = [str(tmp_path / "dist")] if exported else []
    (tmp_path / "forked.py").write_text(FORKED)
    env = {**os.environ, "OMP_NUM_THREADS": "2"}
    command = [sys.executable, str(tmp_path / "forked.py"), *folder]
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr


USE = """
import pickle, sys
import numpy as np
kernel = pickle.load(open(sys.argv[1], "rb"))
a, b = np.random.default_rng(0).standard_normal((2, 32, 32), np.float32)
assert np.allclose(kernel(a, b), a @ b, atol=1e-3) and kernel.name == "matmul"
"""


def test_a_kernel_is_copied_and_sent_to_other_processes(tmp_path):
    kernel = ms.build(scheduled()[0].mod)
    assert copy.deepcopy({"k": kernel})["k"] is kernel and copy.copy(kernel) is kernel
    again = pickle.loads(pickle.dumps(kernel))
    got, want = product(again)
    assert np.allclose(got, want, atol=1e-3)
    assert again.asm == kernel.asm and again.workload_hash == kernel.workload_hash
    (tmp_path / "kernel.pickle").write_bytes(pickle.dumps(kernel))
    done = subprocess.run(
        [sys.executable, "-c", USE, str(tmp_path / "kernel.pickle")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_packed_weights_serve_a_kernel_that_was_sent():
    kernel = ms.build(matmul(32).with_attr("layout_free_buffers", [1]))
    a, b = np.random.default_rng(0).standard_normal((2, 32, 32), np.float32)
    again = pickle.loads(pickle.dumps(kernel))
    assert np.allclose(again(a, kernel.pack(b)), a @ b, atol=1e-3)
    assert np.allclose(kernel(a, again.pack(b)), a @ b, atol=1e-3)


def test_a_kernel_that_cannot_be_sent_says_why(tmp_path):
    kernel = ms.build(matmul(8))
    kernel.export(tmp_path, "mm")
    loaded = ms.load_exported(tmp_path)
    with pytest.raises(pickle.PicklingError, match="matmul was loaded from files; export the"):
        pickle.dumps(loaded)
    assert copy.deepcopy(loaded) is loaded
    made, (compiled, _, digest) = kernel.__reduce__()
    other = ms.Target.of("llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-v1")
    with pytest.raises(BuildError, match="matmul: the kernel cannot run here"):
        made(compiled, other, digest)


def test_a_schedule_goes_on_in_another_process():
    sch, inner = scheduled()
    sent, handle = pickle.loads(pickle.dumps((sch, inner)))
    assert ms.structural_equal(sent.mod, sch.mod)
    assert sent.trace.as_python() == sch.trace.as_python()
    for each, loop in ((sch, inner), (sent, handle)):
        each.unroll(loop)
    assert ms.structural_equal(sent.mod, sch.mod)
    sent.undo()
    again = ms.Schedule(matmul(32))
    sent.trace.apply(again)
    assert ms.structural_equal(again.mod, sent.mod)


def test_a_trace_with_drawn_values_and_places_is_pickled():
    sch = ms.Schedule(matmul(32), seed=0)
    block = sch.get_block("C")
    copied = sch.cache_read(block, 0, "global")
    sch.compute_at(copied, sch.sample_compute_location(copied, decision=-1))
    trace = pickle.loads(pickle.dumps(sch.trace))
    again = ms.Schedule(matmul(32))
    trace.apply(again)
    assert ms.structural_equal(again.mod, sch.mod) and str(trace) == str(sch.trace)


def test_a_primitive_must_be_known_where_a_trace_is_read():
    kind = PRIMITIVES.get("split")
    assert pickle.loads(pickle.dumps(kind)) is kind
    find, _ = kind.__reduce__()
    with pytest.raises(RegistryError, match="no primitive is called 'of_a_plugin'"):
        find("of_a_plugin")


def test_errors_are_pickled_as_texts():
    sch, _ = scheduled()
    with pytest.raises(MetaschedError) as caught:
        sch.parallel(sch.get_loops("C")[3])
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
