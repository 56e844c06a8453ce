"""PolyBench: the data mining kernels correlation and covariance."""

from __future__ import annotations

import math

import numpy as np

from metasched.frontend.workload import Shape, Workload
from metasched.ir.func import PrimFunc
from metasched.script import tir as T


def correlation(shape: Shape, dtype: str = "float64") -> PrimFunc:
    """The correlation matrix of the columns of data, which are standardised in place."""
    M, N = shape
    count, root = float(N), math.sqrt(N)
    eps = 0.1

    @T.prim_func
    def correlation(data: T.Buffer((N, M), dtype), corr: T.Buffer((M, M), dtype)):
        mean = T.alloc_buffer((M,), dtype)
        stddev = T.alloc_buffer((M,), dtype)
        for j in range(M):
            for i in range(N):
                with T.block("mean_sum"):
                    vj, vi = T.axis.remap("SR", [j, i])
                    with T.init():
                        mean[vj] = 0.0
                    mean[vj] += data[vi, vj]
            with T.block("mean"):
                vj = T.axis.spatial(M, j)
                mean[vj] = mean[vj] / count
        for j in range(M):
            for i in range(N):
                with T.block("squares"):
                    vj, vi = T.axis.remap("SR", [j, i])
                    with T.init():
                        stddev[vj] = 0.0
                    stddev[vj] += (data[vi, vj] - mean[vj]) * (data[vi, vj] - mean[vj])
            with T.block("sqrt"):
                vj = T.axis.spatial(M, j)
                stddev[vj] = T.sqrt(stddev[vj] / count)
            with T.block("stddev"):
                vj = T.axis.spatial(M, j)
                stddev[vj] = T.if_then_else(stddev[vj] <= eps, 1.0, stddev[vj])
        for i, j in T.grid(N, M):
            with T.block("center"):
                vi, vj = T.axis.remap("SS", [i, j])
                data[vi, vj] -= mean[vj]
            with T.block("scale"):
                vi, vj = T.axis.remap("SS", [i, j])
                data[vi, vj] = data[vi, vj] / (root * stddev[vj])
        for i in range(M - 1):
            with T.block("diagonal"):
                corr[i, i] = 1.0
            for j in range(i + 1, M):
                for k in range(N):
                    with T.block("corr"):
                        vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                        with T.init():
                            corr[vi, vj] = 0.0
                        corr[vi, vj] += data[vk, vi] * data[vk, vj]
                with T.block("mirror"):
                    corr[j, i] = corr[i, j]
        with T.block("corner"):
            corr[M - 1, M - 1] = 1.0

    return correlation


def correlation_reference(shape: Shape, data: np.ndarray, corr: np.ndarray) -> None:
    stddev = data.std(axis=0)
    stddev[stddev <= 0.1] = 1.0
    data -= data.mean(axis=0)
    data /= math.sqrt(shape[1]) * stddev
    corr[:] = data.T @ data
    np.fill_diagonal(corr, 1.0)


def covariance(shape: Shape, dtype: str = "float64") -> PrimFunc:
    """The covariance matrix of the columns of data, which are centred in place."""
    M, N = shape
    count, freedom = float(N), float(N - 1)

    @T.prim_func
    def covariance(data: T.Buffer((N, M), dtype), cov: T.Buffer((M, M), dtype)):
        mean = T.alloc_buffer((M,), dtype)
        for j in range(M):
            for i in range(N):
                with T.block("mean_sum"):
                    vj, vi = T.axis.remap("SR", [j, i])
                    with T.init():
                        mean[vj] = 0.0
                    mean[vj] += data[vi, vj]
            with T.block("mean"):
                vj = T.axis.spatial(M, j)
                mean[vj] = mean[vj] / count
        for i, j in T.grid(N, M):
            with T.block("center"):
                vi, vj = T.axis.remap("SS", [i, j])
                data[vi, vj] -= mean[vj]
        for i in range(M):
            for j in range(i, M):
                for k in range(N):
                    with T.block("cov"):
                        vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                        with T.init():
                            cov[vi, vj] = 0.0
                        cov[vi, vj] += data[vk, vi] * data[vk, vj]
                with T.block("divide"):
                    cov[i, j] = cov[i, j] / freedom
                with T.block("mirror"):
                    cov[j, i] = cov[i, j]

    return covariance


def covariance_reference(shape: Shape, data: np.ndarray, cov: np.ndarray) -> None:
    data -= data.mean(axis=0)
    cov[:] = data.T @ data / (shape[1] - 1)


WORKLOADS = (
    Workload(
        "poly.correlation", "M N", correlation, correlation_reference, ((240, 260),),
        lambda s: 1.0 * s[0] ** 2 * s[1] + 7 * s[0] * s[1], "float64", in_place=True,
    ),
    Workload(
        "poly.covariance", "M N", covariance, covariance_reference, ((240, 260),),
        lambda s: 1.0 * s[0] ** 2 * s[1] + 2 * s[0] * s[1], "float64", in_place=True,
    ),
)  # fmt: skip
