"""Given data: what is checked and timed, which sizes follow, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

import metasched as ms
from metasched.database.base import STORE
from metasched.database.store import Store
from metasched.errors import MeasureError, TraceMiss, TuneError
from metasched.measure.given import given_data, with_data
from metasched.script import tir as T


@T.prim_func
def sparse(ptr: T.handle, col: T.handle, val: T.handle, x: T.handle, y: T.handle, scale: T.float32):
    n, m, k = T.int32(), T.int32(), T.int32()
    P = T.match_buffer(ptr, (n + 1,), "int32")
    C = T.match_buffer(col, (k,), "int32")
    V = T.match_buffer(val, (k,))
    X = T.match_buffer(x, (m,))
    Y = T.match_buffer(y, (n,))
    for i in range(n):
        with T.block("row"):
            v = T.axis.spatial(n, i)
            Y[v] = T.float32(0)
            for j in range(P[v], P[v + 1]):
                Y[v] += scale * V[j] * X[C[j]]


def matrix() -> dict[str, np.ndarray]:
    """Nine rows, of which one holds 400 of the 408 entries."""
    ends = np.array([0, 1, 2, 3, 4, 404, 405, 406, 407, 408], "int32")
    rng = np.random.default_rng(0)
    columns = rng.integers(0, 30, 408).astype("int32")
    return {"P": ends, "C": columns, "V": rng.standard_normal(408).astype("float32")}


def data() -> dict[str, object]:
    x = np.random.default_rng(1).standard_normal(30).astype("float32")
    return {**matrix(), "X": x, "scale": 0.3}


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    folder = tmp_path_factory.mktemp("given")
    return folder, ms.tune(sparse, data=data(), trials=2, seed=0, work_dir=folder)


def attributes(result: ms.TuneResult) -> dict[str, object]:
    [func] = result.best.mod.functions.values()
    return func.attrs


def test_given_data_decide_sizes_and_results(tuned):
    _, result = tuned
    assert not result.failed
    assert dict(attributes(result)["metasched.sizes"]) == {"n": 9, "m": 30, "k": 408}
    given, y = data(), np.zeros(9, "float32")
    ms.build(result.best)(*[given[n] for n in "PCVX"], y, 0.3)
    products = (given["V"] * given["X"][given["C"]]).astype("float64") * 0.3
    assert np.allclose(y, np.add.reduceat(products, given["P"][:-1]), atol=1e-5)


def test_replay_needs_no_data(tuned):
    folder, result = tuned
    assert ms.structural_equal(ms.replay(result.best.path, sparse).mod, result.best.mod)
    with Store(folder / STORE) as store:
        sized = sparse.with_attr("metasched.sizes", {"n": 9, "m": 30, "k": 408})
        assert ms.replay(store, sized).mod.functions
        assert ms.structural_equal(ms.replay(store, sparse).mod, result.best.mod)
        with pytest.raises(TraceMiss):
            ms.replay(store, sparse.with_attr("metasched.data", "0" * 16))


def test_other_data_are_another_task(tuned):
    given = {**data(), "V": np.ones(408, "float32")}
    mine, other = (with_data(sparse, given_data(sparse, d)) for d in (data(), given))
    assert ms.structural_hash(mine) != ms.structural_hash(other)
    assert mine.attrs["metasched.data"] == attributes(tuned[1])["metasched.data"]


def test_caller_may_change_the_arrays_later():
    values = matrix()
    given = given_data(sparse, values)
    values["V"][:] = 0
    assert given.arrays[2].any()


def test_tensors_of_other_libraries():
    torch = pytest.importorskip("torch", reason="PyTorch is an optional peer")
    given = given_data(sparse, {"V": torch.arange(5.0)})
    assert given.arrays[2].tolist() == [0, 1, 2, 3, 4] and given.sizes == {"k": 5}


def of(name: str, value: object) -> dict[str, object]:
    return {**data(), name: value}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([1, 2], "data are arrays and numbers by the names of parameters"),
        ({"Z": 1.0}, "data name 'Z'; the parameters are: P, C, V, X, Y, scale"),
        (of("P", matrix()["P"].astype("int64")), "data of P has the type int64"),
        (of("V", [1.0, 2.0]), "data of V must be an array of float32"),
        (of("X", np.zeros((3, 2), "float32")), r"X has the shape \(3, 2\), .* takes \(m\)"),
        (of("V", np.zeros(3, "float32")), r"V has the shape \(3,\), .* takes \(k\) with k = 408"),
        (of("Y", np.zeros(5, "float32")), r"Y has the shape \(5,\), .* takes \(n\) with .*n = 9"),
        (of("P", np.zeros(1, "int32")), r"P have the shape \(1,\), by which n is 0; a size"),
        (of("scale", "x"), "data of scale must be a number"),
        (of("scale", np.zeros(2)), "data of scale must be a number"),
    ],
)  # fmt: skip
def test_refused_data(given, message):
    with pytest.raises(TuneError, match=message):
        ms.tune(sparse, data=given, trials=1)


@T.prim_func
def shifted(A: T.Buffer((8,)), n: T.int8, B: T.Buffer((8,))):
    for i in range(8):
        with T.block("b"):
            v = T.axis.spatial(8, i)
            B[v] = A[v] + T.Cast("float32", n)


@pytest.mark.parametrize(("value", "message"), [(0.5, "an integer"), (300, "300, outside of int8")])
def test_refused_integers(value, message):
    with pytest.raises(TuneError, match=message):
        given_data(shifted, {"n": value})


@T.prim_func
def scaled(A: T.Buffer((8,)), by: T.float32):
    for i in range(8):
        A[i] = A[i] * by


def test_refused_floats():
    assert given_data(scaled, {"by": 3e38}).scalars == {"by": 3e38}
    with pytest.raises(TuneError, match="data of by is 1e[+]39, outside of float32"):
        given_data(scaled, {"by": 1e39})


def test_sizes_that_contradict_the_data():
    with pytest.raises(TuneError, match="the size of 'k' is 7, but the data have 408"):
        ms.tune(sparse, data=data(), sizes={"k": 7}, trials=1)


def test_data_of_unknown_tasks_and_of_runners():
    with pytest.raises(TuneError, match="'g' has data, but the tasks are f"):
        ms.tune_tasks({"f": shifted}, data={"g": {}}, trials=1)
    with pytest.raises(TuneError, match="data are mappings by the name of the task"):
        ms.tune_tasks({"f": shifted}, data=[1], trials=1)
    with pytest.raises(TuneError, match=r"a runner is given: .* MeasureOptions\(data="):
        ms.tune(shifted, data={"n": 1}, runner=lambda *_: None, trials=1)


def test_program_that_fails_on_the_data(tmp_path):
    wild = {**data(), "C": np.full(408, 1 << 30, "int32")}
    message = "unscheduled program cannot be run: .*the given data may lead outside.*check_bounds"
    with pytest.raises(MeasureError, match=message):
        ms.tune(sparse, data=wild, trials=1, work_dir=tmp_path)


@T.prim_func
def apart(ptr: T.handle, val: T.handle, y: T.handle):
    n, p, k = T.int32(), T.int32(), T.int32()
    P = T.match_buffer(ptr, (p,), "int32")
    V = T.match_buffer(val, (k,))
    Y = T.match_buffer(y, (n,))
    for i in range(n):
        with T.block("row"):
            v = T.axis.spatial(n, i)
            Y[v] = T.float32(0)
            for j in range(P[v + 500000000 * T.Cast("int32", n != 7)], P[v + 1]):
                Y[v] += V[j]


def test_extents_that_depend_on_each_other(tmp_path):
    """At sizes of its own choice the program reads far outside, so there are no such checks."""
    ends = np.arange(8).astype("int32")
    with pytest.warns(UserWarning, match=r"at the size that they are timed at alone.*\(n \+ 1,\)"):
        result = ms.tune(
            apart, data={"P": ends, "V": np.ones(7, "float32"), "Y": np.ones(7, "float32")},
            trials=1, seed=0, work_dir=tmp_path,
        )  # fmt: skip
    assert result.best is not None
