"""erf: a polynomial near zero, and 1 - exp(-g(|x|)) with a polynomial g further out."""

from __future__ import annotations

from metasched.codegen.vectormath.exponential import exp
from metasched.codegen.vectormath.text import DOUBLE, SINGLE, Text

# Where the second polynomial begins.
_BOUND = {SINGLE: 0.927734375, DOUBLE: 1.0}
# erf(x) = x + x * p(x * x). float32: N. Juffa; float64: minimax, relative error 2**-57.
_NEAR = {
    SINGLE: (-5.96761703e-4, 4.99119423e-3, -2.67681349e-2, 1.12819925e-1, -3.76125336e-1,
             1.28379166e-1),
    DOUBLE: (-7.797685989081661e-10, 1.3721137893742711e-08, -1.6208760270995594e-07,
             1.6447464712183857e-06, -1.4924740484580211e-05, 0.0001205529510940345,
             -0.000854832598287394, 0.0052239776072865625, -0.02686617064326027,
             0.11283791670945159, -0.37612638903183543, 0.12837916709551256),
}  # fmt: skip
# g(x) - x up to `_LAST`. float32: N. Juffa, evaluated in two halves; float64: minimax for the error
# of erf, 2**-58.
_FAR = {
    SINGLE: (1.72853470e-5, -3.83197126e-4, 3.88396438e-3, -2.42546219e-2, 1.06777877e-1,
             6.34846687e-1, 1.28717512e-1),
    DOUBLE: (1.621596523284179e-13, -8.257797469034643e-12, 1.9766921049852673e-10,
             -2.9566106325764388e-09, 3.096387069086721e-08, -2.408361003068087e-07,
             1.4369492891254046e-06, -6.6708507461068335e-06, 2.3975023493367614e-05,
             -6.411958021607034e-05, 0.00010974003684174668, -2.0723418278670792e-05,
             -0.0005534936261432366, 0.0016755713445939168, -0.00020232920436677804,
             -0.019128325082700647, 0.10277108283721878, 0.6366206036992689,
             0.12837895075755149, 2.3686709139382294e-08),
}  # fmt: skip
_LAST = 5.95  # erf(x) is 1 from here, in float64


def _exponent(t: Text, size: str, square: str) -> str:
    """-g(size)."""
    if t.format is DOUBLE:
        last = t.const(_LAST)
        size = t.pick(t.test("ogt", size, last), last, size)
        return t.neg(t.add(t.poly(size, _FAR[DOUBLE]), size))
    a, b, c, d, *rest = _FAR[SINGLE]
    high = t.fma(t.const(-a), size, t.const(-b))
    r = t.fma(high, square, t.fma(t.const(-c), size, t.const(-d)))
    for coefficient in rest:
        r = t.fma(r, size, t.const(-coefficient))
    return t.fma(r, size, t.neg(size))


def erf(t: Text, x: str) -> str:
    size, square = t.named("fabs", x), t.mul(x, x)
    far = t.sub(t.const(1.0), exp(t, _exponent(t, size, square)))
    near = t.fma(t.poly(square, _NEAR[t.format]), x, x)
    is_far = t.test("ogt", size, t.const(_BOUND[t.format]))
    return t.pick(is_far, t.named("copysign", far, x), near)
