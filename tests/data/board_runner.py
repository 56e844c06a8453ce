"""A runner for another machine: link each candidate to a C program, run it there, check and time.

BOARD is the command that runs a program: here an emulator, for a board a script of `scp` and `ssh`.
"""

import subprocess
import tempfile
from pathlib import Path

import numpy as np

import metasched as ms
from metasched.errors import MetaschedError
from metasched.ir.interp import run
from metasched.measure.candidate import Outcome, Status

LINKER = ["aarch64-linux-gnu-gcc", "-O1"]
BOARD = ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu", "-cpu", "max"]
MAIN = r"""
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "kernel.h"
static const long sizes[] = {%s};
enum { COUNT = sizeof sizes / sizeof *sizes };
int main(void) {
    void *p[COUNT];
    FILE *file = fopen("arrays", "r+b");
    for (int n = 0; n < COUNT; ++n) {
        p[n] = aligned_alloc(64, (sizes[n] + 63) / 64 * 64);
        if (fread(p[n], 1, sizes[n], file) != sizes[n]) return 90;
    }
    struct timespec a, b;
    for (int n = 0; n < 3; ++n) {
        clock_gettime(CLOCK_MONOTONIC, &a);
        int code = kernel(%s);
        clock_gettime(CLOCK_MONOTONIC, &b);
        if (code) return code;
        printf("%%.9f\n", b.tv_sec - a.tv_sec + 1e-9 * (b.tv_nsec - a.tv_nsec));
    }
    rewind(file);
    for (int n = 0; n < COUNT; ++n) fwrite(p[n], 1, sizes[n], file);
    return fclose(file);
}
"""


@ms.runner("board")
class Board:
    """Times candidates on the machine that BOARD reaches."""

    def __init__(self, func, target):
        draw = np.random.default_rng(0)
        self.target = target
        self.before = [
            draw.integers(0, 8, b.constant_shape()).astype(b.dtype.numpy) for b in func.buffers
        ]
        self.after = [array.copy() for array in self.before]
        run(func, *self.after)

    def measure(self, candidates, on_outcome=None):
        found = []
        for candidate in candidates:
            with tempfile.TemporaryDirectory() as folder:
                found.append(self.outcome(candidate, Path(folder)))
            if on_outcome is not None:
                on_outcome(candidate, found[-1])
        return found

    def outcome(self, candidate, folder):
        try:
            ms.export(candidate.module, folder, self.target, name="kernel")
        except MetaschedError as error:
            return Outcome(Status.BUILD_ERROR, message=str(error))
        sizes = ", ".join(str(array.nbytes) for array in self.before)
        words = ", ".join(f"p[{n}]" for n in range(len(self.before)))
        (folder / "main.c").write_text(MAIN % (sizes, words))
        (folder / "arrays").write_bytes(b"".join(array.tobytes() for array in self.before))
        link = [*LINKER, "main.c", "kernel.o", "-lgomp", "-lm", "-o", "program"]
        subprocess.run(link, cwd=folder, check=True)
        try:
            done = subprocess.run(
                [*BOARD, "./program"], cwd=folder, capture_output=True, text=True, timeout=60
            )
        except subprocess.TimeoutExpired:
            return Outcome(Status.RUN_TIMEOUT, message="60 s")
        if done.returncode:
            return Outcome(Status.RUN_ERROR, message=f"code {done.returncode} {done.stderr}")
        if (folder / "arrays").read_bytes() != b"".join(a.tobytes() for a in self.after):
            return Outcome(Status.WRONG_RESULT, message="another result than the program's")
        seconds = tuple(float(line) for line in done.stdout.split())
        return Outcome(Status.OK, seconds, check="exact", machine="board")

    def close(self):
        """Nothing runs."""
