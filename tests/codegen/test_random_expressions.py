"""Random expressions over all types give the interpreter's bits, for scalars and for vectors."""

from __future__ import annotations

import pytest
from codegen.random_expressions import play


@pytest.mark.parametrize("number", [1, 3, 5, 7, 11, 13, 18])
def test_random_expressions_give_the_bits_of_the_interpreter(number: int) -> None:
    play(number)
