"""Run kernels of AArch64 on this machine, under the user-mode emulation of qemu.

The packages are named in metasched/GUIDE.md; without them, `require_emulator` skips the test.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metasched.codegen.compile import compile_func
from metasched.ir.func import PrimFunc
from metasched.target import Target

CROSS, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
LIBRARIES = Path("/usr/aarch64-linux-gnu")
# What the emulated processor has: everything but SVE, whose vectors have no fixed length.
EMULATED = Target.of("llvm -mtriple=aarch64-linux-gnu -mattr=+v8.6a,+fullfp16,+fp16fml")

# A line of input: a symbol, then files whose contents are its arrays, or =NUMBER for an extent.
HARNESS = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
enum { MOST = 12 };
typedef int32_t kernel(void *, ...);
static char line[1 << 16];
int main(void) {
    while (fgets(line, sizeof line, stdin)) {
        char *name = strtok(line, " \n"), *word, *files[MOST];
        void *values[MOST] = {0};
        long sizes[MOST], count = 0;
        for (; (word = strtok(NULL, " \n")); ++count) {
            files[count] = word;
            if (*word == '=') { values[count] = (void *)strtol(word + 1, NULL, 10); continue; }
            FILE *file = fopen(word, "rb");
            fseek(file, 0, SEEK_END);
            sizes[count] = ftell(file);
            rewind(file);
            values[count] = aligned_alloc(64, (sizes[count] + 127) / 64 * 64);
            if (fread(values[count], 1, sizes[count], file) != (size_t)sizes[count]) return 2;
            fclose(file);
        }
        kernel *run = (kernel *)dlsym(NULL, name);
        if (!run) return 3;
        printf("%s %d\n", name, run(values[0], values[1], values[2], values[3], values[4],
               values[5], values[6], values[7], values[8], values[9], values[10], values[11]));
        for (int n = 0; n < count; ++n) {
            if (*files[n] == '=') continue;
            FILE *file = fopen(files[n], "wb");
            fwrite(values[n], 1, sizes[n], file);
            fclose(file);
            free(values[n]);
        }
    }
    return 0;
}
"""


@functools.cache
def missing() -> str:
    """What this machine lacks for the emulation; empty where it is complete."""
    lacks = [name for name in (CROSS, EMULATOR) if shutil.which(name) is None]
    if not (LIBRARIES / "lib" / "libc.so.6").exists():
        lacks.append("an AArch64 C library (libc6-dev-arm64-cross)")
    return ", ".join(lacks)


def require_emulator() -> None:
    """Skip the test where kernels of AArch64 cannot run."""
    if missing():
        pytest.skip(f"kernels for AArch64 are not run: this machine lacks {missing()}")


class Emulated:
    """Kernels of one program, which is linked once and runs them all.

    Usage: `add` each function with its arguments, then `run`; the arrays are written in place.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._calls: list[tuple[str, Sequence[Any]]] = []
        self._objects: list[Path] = []

    def add(self, func: PrimFunc, *arguments: Any, target: Target = EMULATED) -> str:
        """Compile a function of arrays and integers for AArch64; gives its C name."""
        symbol = f"kernel{len(self._calls)}"
        path = self.folder / f"{symbol}.o"
        compiled = compile_func(func, target, symbol)
        path.write_bytes(compiled.object)
        self._objects.append(path)
        shapes = [p.shape for p in compiled.signature.buffers]
        arrays = [a for a in arguments if isinstance(a, np.ndarray)]
        sizes = {
            extent: size
            for shape, array in zip(shapes, arrays, strict=True)
            for extent, size in zip(shape, array.shape, strict=True)
        }
        extents = [sizes[symbol] for symbol in compiled.signature.symbols]
        self._calls.append((symbol, [*arguments, *extents]))
        return symbol

    def run(self, cpu: str = "max") -> None:
        """Link, run each kernel once, and read back what it wrote; all must return 0."""
        self.link()
        lines = []
        for symbol, arguments in self._calls:
            words = [symbol]
            for n, value in enumerate(arguments):
                if isinstance(value, np.ndarray):
                    words.append(f"{symbol}.{n}")
                    (self.folder / words[-1]).write_bytes(value.tobytes())
                else:
                    words.append(f"={int(value)}")
            lines.append(" ".join(words))
        done = self.start(cpu, "\n".join(lines) + "\n")
        assert done.returncode == 0, (done.returncode, done.stdout[-200:], done.stderr[-200:])
        assert done.stdout.splitlines() == [f"{symbol} 0" for symbol, _ in self._calls]
        for symbol, arguments in self._calls:
            for n, value in enumerate(arguments):
                if isinstance(value, np.ndarray):
                    raw = (self.folder / f"{symbol}.{n}").read_bytes()
                    value[...] = np.frombuffer(raw, value.dtype).reshape(value.shape)

    def link(self) -> None:
        """Link the harness and the kernels to one program."""
        (self.folder / "main.c").write_text(HARNESS)
        command = [CROSS, "-O1", "-rdynamic", "-o", "program", "main.c", *map(str, self._objects)]
        subprocess.run([*command, "-ldl", "-lgomp", "-lm"], cwd=self.folder, check=True)

    def start(self, cpu: str, lines: str) -> subprocess.CompletedProcess[str]:
        """Run the program on an emulated processor."""
        command = [EMULATOR, "-L", str(LIBRARIES), "-cpu", cpu, "./program"]
        return subprocess.run(
            command, cwd=self.folder, input=lines, capture_output=True, text=True, check=False,
            timeout=120,
        )  # fmt: skip
