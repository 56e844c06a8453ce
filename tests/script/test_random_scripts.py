"""Random scripts and the same text run as Python over NumPy give equal arrays."""

from __future__ import annotations

import random

from as_python import agree
from hypothesis import given, settings
from hypothesis import strategies as st
from scripts import arguments, random_script


@given(st.integers(0, 1 << 30))
@settings(max_examples=60, deadline=None)
def test_random_scripts_mean_what_they_mean_in_python(seed):
    agree(random_script(random.Random(seed)), *arguments(seed), compiled=False)


@given(st.integers(0, 1 << 30))
@settings(max_examples=12, deadline=None)
def test_machine_code_of_random_scripts(seed):
    agree(random_script(random.Random(seed)), *arguments(seed))
