"""PolyBench in PyTorch: operators on whole arrays; a loop over time calls one step at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from metasched.report.peer_op import PeerOp, Shape

ALPHA, BETA = 1.5, 1.2
Maker = Callable[[Any, Shape, list[Any]], PeerOp]


def _gemm(torch: Any, shape: Shape, t: list[Any]) -> PeerOp:
    A, B, C = t
    return PeerOp(lambda: C.addmm_(A, B, beta=BETA, alpha=ALPHA))


def _gemver(torch: Any, shape: Shape, t: list[Any]) -> PeerOp:
    A, u1, v1, u2, v2, w, x, y, z = t

    def call() -> Any:
        A.add_(u1[:, None] * v1 + u2[:, None] * v2)
        x.addmv_(A.T, y, alpha=BETA).add_(z)
        return w.addmv_(A, x, alpha=ALPHA)

    return PeerOp(call)


def _gesummv(torch: Any, shape: Shape, t: list[Any]) -> PeerOp:
    A, B, x, y = t
    return PeerOp(lambda: y.addmv_(A, x, beta=0, alpha=ALPHA).addmv_(B, x, alpha=BETA))


def _symm(torch: Any, shape: Shape, t: list[Any]) -> PeerOp:
    A, B, C = t
    return PeerOp(lambda: C.addmm_(A.tril() + A.tril(-1).T, B, beta=BETA, alpha=ALPHA))


def _syrk(torch: Any, shape: Shape, t: list[Any]) -> PeerOp:
    """The whole square; the upper triangle of C is kept."""
    A, C = t
    above = torch.triu(torch.ones_like(C, dtype=torch.bool), 1)
    return PeerOp(lambda: C.copy_(torch.where(above, C, C.addmm(A, A.T, beta=BETA, alpha=ALPHA))))


def _syr2k(torch: Any, shape: Shape, t: list[Any]) -> PeerOp:
    A, B, C = t
    above = torch.triu(torch.ones_like(C, dtype=torch.bool), 1)

    def call() -> Any:
        half = A @ B.T
        return C.copy_(torch.where(above, C, BETA * C + ALPHA * (half + half.T)))

    return PeerOp(call)


def _trmm(torch: Any, shape: Shape, t: list[Any]) -> PeerOp:
    A, B = t
    return PeerOp(lambda: B.copy_(torch.addmm(B, A.tril(-1).T, B)).mul_(ALPHA))


def _two_mm(torch: Any, shape: Shape, t: list[Any]) -> PeerOp:
    A, B, C, D = t
    return PeerOp(lambda: D.addmm_(A @ B, C, beta=BETA, alpha=ALPHA))


def _three_mm(torch: Any, shape: Shape, t: list[Any]) -> PeerOp:
    A, B, C, D, G = t
    return PeerOp(lambda: torch.mm(A @ B, C @ D, out=G))


def _atax(torch: Any, shape: Shape, t: list[Any]) -> PeerOp:
    A, x, y = t
    return PeerOp(lambda: torch.mv(A.T, torch.mv(A, x), out=y))


def _bicg(torch: Any, shape: Shape, t: list[Any]) -> PeerOp:
    A, p, r, s, q = t
    return PeerOp(lambda: (torch.mv(A.T, r, out=s), torch.mv(A, p, out=q)))


def _doitgen(torch: Any, shape: Shape, t: list[Any]) -> PeerOp:
    A, C4 = t
    return PeerOp(lambda: A.copy_(A @ C4))


def _mvt(torch: Any, shape: Shape, t: list[Any]) -> PeerOp:
    A, x1, x2, y1, y2 = t
    return PeerOp(lambda: (x1.addmv_(A, y1), x2.addmv_(A.T, y2)))


def _cholesky(torch: Any, shape: Shape, t: list[Any]) -> PeerOp:
    (A,) = t
    return PeerOp(lambda: torch.linalg.cholesky(A), lambda y: [y])


def _gramschmidt(torch: Any, shape: Shape, t: list[Any]) -> PeerOp:
    A, R, Q = t
    return PeerOp(lambda: torch.linalg.qr(A, out=(Q, R)))


def _lu(torch: Any, shape: Shape, t: list[Any]) -> PeerOp:
    (A,) = t
    return PeerOp(lambda: torch.linalg.lu_factor(A)[0], lambda y: [y])


def _ludcmp(torch: Any, shape: Shape, t: list[Any]) -> PeerOp:
    A, b, x, _ = t
    return PeerOp(lambda: torch.linalg.solve(A, b, out=x))


def _trisolv(torch: Any, shape: Shape, t: list[Any]) -> PeerOp:
    L, x, b = t
    solve, columns = torch.linalg.solve_triangular, b[:, None]
    return PeerOp(lambda: x.copy_(solve(L, columns, upper=False)[:, 0]))


def _covariance(torch: Any, shape: Shape, t: list[Any]) -> PeerOp:
    data, cov = t

    def call() -> Any:
        data.sub_(data.mean(0))
        return cov.copy_(data.T @ data).div_(shape[1] - 1)

    return PeerOp(call)


def _correlation(torch: Any, shape: Shape, t: list[Any]) -> PeerOp:
    data, corr = t

    def call() -> Any:
        deviation = data.std(0, correction=0)
        deviation = torch.where(deviation <= 0.1, 1.0, deviation)
        data.sub_(data.mean(0)).div_(shape[1] ** 0.5 * deviation)
        return corr.copy_(data.T @ data).fill_diagonal_(1.0)

    return PeerOp(call)


def _fdtd_2d(torch: Any, shape: Shape, t: list[Any]) -> PeerOp:
    ex, ey, hz, source = t

    def step(value: Any) -> None:
        ey[0] = value
        ey[1:] -= 0.5 * (hz[1:] - hz[:-1])
        ex[:, 1:] -= 0.5 * (hz[:, 1:] - hz[:, :-1])
        hz[:-1, :-1] -= 0.7 * (ex[:-1, 1:] - ex[:-1, :-1] + ey[1:, :-1] - ey[:-1, :-1])

    return PeerOp(step, over=tuple((value,) for value in source))


def _heat_3d(torch: Any, shape: Shape, t: list[Any]) -> PeerOp:
    A, B = t
    m = slice(1, -1)

    def half(old: Any, new: Any) -> None:
        middle = old[m, m, m]
        new[m, m, m] = (
            0.125 * (old[2:, m, m] - 2 * middle + old[:-2, m, m])
            + 0.125 * (old[m, 2:, m] - 2 * middle + old[m, :-2, m])
            + 0.125 * (old[m, m, 2:] - 2 * middle + old[m, m, :-2])
            + middle
        )

    return PeerOp(half, over=((A, B), (B, A)) * shape[0])


def _jacobi_1d(torch: Any, shape: Shape, t: list[Any]) -> PeerOp:
    A, B = t

    def step() -> None:
        B[1:-1] = 0.33333 * (A[:-2] + A[1:-1] + A[2:])
        A[1:-1] = 0.33333 * (B[:-2] + B[1:-1] + B[2:])

    return PeerOp(step, over=((),) * shape[0])


def _jacobi_2d(torch: Any, shape: Shape, t: list[Any]) -> PeerOp:
    A, B = t
    m = slice(1, -1)

    def half(old: Any, new: Any) -> None:
        new[m, m] = 0.2 * (old[m, m] + old[m, :-2] + old[m, 2:] + old[2:, m] + old[:-2, m])

    return PeerOp(half, over=((A, B), (B, A)) * shape[0])


def _floyd_warshall(torch: Any, shape: Shape, t: list[Any]) -> PeerOp:
    (path,) = t

    def step(column: Any, row: Any) -> None:
        torch.minimum(path, column + row, out=path)

    return PeerOp(step, over=tuple((path[:, k, None], path[k]) for k in range(shape[0])))


POLYBENCH: dict[str, Maker] = {
    "poly.gemm": _gemm, "poly.gemver": _gemver, "poly.gesummv": _gesummv, "poly.symm": _symm,
    "poly.syr2k": _syr2k, "poly.syrk": _syrk, "poly.trmm": _trmm, "poly.2mm": _two_mm,
    "poly.3mm": _three_mm, "poly.atax": _atax, "poly.bicg": _bicg, "poly.doitgen": _doitgen,
    "poly.mvt": _mvt, "poly.cholesky": _cholesky, "poly.gramschmidt": _gramschmidt,
    "poly.lu": _lu, "poly.ludcmp": _ludcmp, "poly.trisolv": _trisolv,
    "poly.correlation": _correlation, "poly.covariance": _covariance, "poly.fdtd-2d": _fdtd_2d,
    "poly.heat-3d": _heat_3d, "poly.jacobi-1d": _jacobi_1d, "poly.jacobi-2d": _jacobi_2d,
    "poly.floyd-warshall": _floyd_warshall,
}  # fmt: skip
