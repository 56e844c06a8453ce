"""erf(x) = 1 - exp(-g(|x|)), by an exponential less 1 that is accurate for small x too."""

from __future__ import annotations

from metasched.codegen.vectormath.exponential import above_minus_one
from metasched.codegen.vectormath.text import DOUBLE, SINGLE, Text

# erf(x) is 1 from here.
_LAST = {SINGLE: 3.93, DOUBLE: 5.95}
# p of g(x) = x + x * p(x). Minimax for the relative error of erf up to `_LAST`: 2**-27 and 2**-57.
_POWERS = {
    SINGLE: (-9.254619394982039e-06, 0.00011762754043533853, -0.000632792656383486,
             0.0016669580937843632, -0.00016034114122038523, -0.019153084206344033,
             0.10277783337422622, 0.636619381772812, 0.12837917162373003),
    DOUBLE: (7.832609124035457e-16, -3.849820407870688e-14, 8.844114253599045e-13,
             -1.26091486110761e-11, 1.2482491578772096e-10, -9.081213748925928e-10,
             4.997224261963015e-09, -2.096090879836308e-08, 6.572857813338307e-08,
             -1.4175116628039602e-07, 1.3716365850262268e-07, 3.3638909019015333e-07,
             -1.7415720757542223e-06, 2.835158242507388e-06, 3.40725698252814e-06,
             -2.972404485437525e-05, 6.449186233844764e-05, 2.5878602917045504e-05,
             -0.0005901255523082817, 0.001696206385596454, -0.00020919469482033492,
             -0.019128447005072092, 0.10277260330178882, 0.6366197723675836,
             0.12837916709551256),
}  # fmt: skip


def erf(t: Text, x: str) -> str:
    last = t.const(_LAST[t.format])
    size = t.named("fabs", x)
    size = t.pick(t.test("ogt", size, last), last, size)
    exponent = t.fma(size, t.poly(size, _POWERS[t.format]), size)
    return t.named("copysign", above_minus_one(t, t.neg(exponent)), x)
