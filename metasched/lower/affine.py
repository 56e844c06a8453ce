"""Integer expressions as sums: constant + sum of coefficient * atom, for addresses."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from metasched.ir.expr import Add, Expr, FloorMod, IntImm, Mul, Sub, floordiv

Affine = tuple[dict[Expr, int], int]
_KNOWN: WeakKeyDictionary[Expr, Affine] = WeakKeyDictionary()


def affine(expr: Expr) -> Affine:
    """(coefficients by atom, constant) of an integer expression; cached on its identity.

    Atoms are what is not a sum or a product with a constant. Iterative, so that sums of
    thousands of terms are legal. The caller must not change the dictionary.
    """
    found = _KNOWN.get(expr)
    if found is not None:
        return found
    terms: dict[Expr, int] = {}
    constant = 0
    work: list[tuple[Expr, int]] = [(expr, 1)]
    while work:
        node, factor = work.pop()
        if isinstance(node, IntImm):
            constant += factor * node.value
        elif isinstance(node, Add):
            work.append((node.b, factor))
            work.append((node.a, factor))
        elif isinstance(node, Sub):
            work.append((node.b, -factor))
            work.append((node.a, factor))
        elif isinstance(node, Mul) and isinstance(node.b, IntImm):
            work.append((node.a, factor * node.b.value))
        elif isinstance(node, Mul) and isinstance(node.a, IntImm):
            work.append((node.b, factor * node.a.value))
        elif factor:
            total = terms.get(node, 0) + factor
            if total:
                terms[node] = total
            else:
                del terms[node]
    constant += _joined(terms)
    result = (terms, constant)
    _KNOWN[expr] = result
    return result


def _joined(terms: dict[Expr, int]) -> int:
    """x // c * c + x % c  ->  x, in place, for the two halves of a fused loop; what to add to the
    constant."""
    constant = 0
    for rest in [t for t in terms if isinstance(t, FloorMod)]:
        assert isinstance(rest, FloorMod)
        whole, by, factor = floordiv(rest.a, rest.b), rest.b, terms.get(rest, 0)
        if not isinstance(by, IntImm) or terms.get(whole) != factor * by.value:
            continue
        del terms[rest], terms[whole]
        parts, more = affine(rest.a)
        constant += more * factor
        for atom, times in parts.items():
            total = terms.get(atom, 0) + times * factor
            if total:
                terms[atom] = total
            else:
                terms.pop(atom, None)
    return constant
