"""The barrier of a team of threads: wait briefly in a loop, then sleep until all are there.

The barriers of OpenMP runtimes wait in a loop for milliseconds before they sleep. Where two threads
of a team share one processor, because other programs run, the waiting thread keeps the other one
from running. Here a thread sleeps after `_SPINS` steps.

A closure of 64-bit words starts with four cache lines: the code of a failure, how many threads
have arrived, how often the barrier was passed, and how many threads sleep.
"""

from __future__ import annotations

from metasched.codegen.emit import Emitter

LINE = 64
"""Bytes of a cache line, to which a closure is aligned."""

FIRST_VALUE = 4 * LINE // 8
"""The word of a closure that holds the first captured value."""

_ARRIVED, _PASSED, _ASLEEP = LINE, 2 * LINE, 3 * LINE  # bytes from the start of a closure
_SPINS = 1024  # 30 to 50 us; a thread that sleeps wakes 5 to 50 us too late
_NAME = "metasched.barrier"
_WAIT, _WAKE, _ALL = 128, 129, 2**31 - 1  # FUTEX_WAIT_PRIVATE, FUTEX_WAKE_PRIVATE, INT_MAX
# Of each architecture: Linux's number of `futex`, and the intrinsic that delays a waiting loop.
_FUTEX = {"x86_64": 202, "aarch64": 98}
_PAUSE = {
    "x86_64": ("llvm.x86.sse2.pause", "void @llvm.x86.sse2.pause()", ""),
    "aarch64": ("llvm.aarch64.hint", "void @llvm.aarch64.hint(i32)", "i32 1"),
}


def clear_barrier(e: Emitter, closure: str) -> None:
    """Write the state before the first thread arrives."""
    for offset in (_ARRIVED, _PASSED, _ASLEEP):
        place = e.fresh()
        e.line(f"{place} = getelementptr i8, ptr {closure}, i64 {offset}")
        e.line(f"store i32 0, ptr {place}")


def wait_for_team(e: Emitter, closure: str, size: str) -> None:
    """Wait until all `size` threads of a team are here; their memory is seen afterwards."""
    module = e.module
    if _NAME not in module.definitions:
        name, signature, argument = _PAUSE[module.arch]
        module.declare(name, signature, "nounwind")
        module.declare("syscall", "i64 @syscall(i64, ...)")
        module.externs.add("syscall")
        text = _TEXT.replace("PAUSE", f"call void @{name}({argument})")
        module.definitions[_NAME] = text.replace("FUTEX", str(_FUTEX[module.arch]))
    e.line(f"call void @{_NAME}(ptr {closure}, i64 {size})")


# A thread counts itself as asleep before Linux compares the word `passed`; the last thread changes
# this word before it reads how many are asleep. So no thread sleeps for ever.
_TEXT = f"""\
define internal void @{_NAME}(ptr %closure, i64 %size) noinline nounwind {{
%arrived = getelementptr i8, ptr %closure, i64 {_ARRIVED}
%passed = getelementptr i8, ptr %closure, i64 {_PASSED}
%asleep = getelementptr i8, ptr %closure, i64 {_ASLEEP}
%threads = trunc i64 %size to i32
%before = load atomic i32, ptr %passed acquire, align 4
%others = atomicrmw add ptr %arrived, i32 1 acq_rel, align 4
%all = add i32 %others, 1
%last = icmp eq i32 %all, %threads
br i1 %last, label %open, label %wait
open:
store atomic i32 0, ptr %arrived monotonic, align 4
%next = add i32 %before, 1
store atomic i32 %next, ptr %passed seq_cst, align 4
%sleepers = load atomic i32, ptr %asleep seq_cst, align 4
%quiet = icmp eq i32 %sleepers, 0
br i1 %quiet, label %through, label %wake
wake:
%woken = call i64 (i64, ...) @syscall(i64 FUTEX, ptr %passed, i32 {_WAKE}, i32 {_ALL}, ptr null)
ret void
wait:
%step = phi i32 [ 0, %0 ], [ %more, %spin ]
%now = load atomic i32, ptr %passed acquire, align 4
%done = icmp ne i32 %now, %before
br i1 %done, label %through, label %again
again:
%more = add i32 %step, 1
%brief = icmp ult i32 %step, {_SPINS}
br i1 %brief, label %spin, label %tired
spin:
PAUSE
br label %wait
tired:
%plus = atomicrmw add ptr %asleep, i32 1 seq_cst, align 4
br label %sleep
sleep:
%code = call i64 (i64, ...) @syscall(i64 FUTEX, ptr %passed, i32 {_WAIT}, i32 %before, ptr null)
%then = load atomic i32, ptr %passed acquire, align 4
%awake = icmp ne i32 %then, %before
br i1 %awake, label %up, label %sleep
up:
%minus = atomicrmw sub ptr %asleep, i32 1 seq_cst, align 4
br label %through
through:
ret void
}}"""
