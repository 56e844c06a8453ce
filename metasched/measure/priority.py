"""Priorities of processes: a timed process gets cores first, background processes last.

A nice level is not enough. If Linux groups processes by session (`autogroup`, the default of many
distributions), levels count only within a session. Then a builder at nice 19 in its own session
takes as much of a core as the kernel being timed. The group has a level of its own, and a process
that leads its session sets both.
"""

from __future__ import annotations

import contextlib
import os
import resource
import time
from collections.abc import Iterator

from metasched.hardware import BINDING, usable_cpus

FIRST, LAST = -20, 19
GROUP_LAST = 10
"""The level of a session with background processes: a tenth of a core beside busy processes, so
that a build does not wait for a core during its whole time limit."""
_SYS_NICE = 23  # the number of the capability
_GROUP = "/proc/self/autogroup"
_TRIES = 5  # Linux lets ordinary users set the levels of groups ten times a second in total


def prioritise(nice: int) -> int:
    """Bring this process, and the group of the session that it leads, to a nice level.

    A level below 0 needs privileges; without them everything stays as it was. Returns the nice
    level that holds.
    """
    try:
        os.setpriority(os.PRIO_PROCESS, 0, nice)
    except PermissionError:
        return os.getpriority(os.PRIO_PROCESS, 0)
    if os.getsid(0) == os.getpid():
        for _ in range(_TRIES):
            try:
                with open(_GROUP, "w") as file:
                    file.write(str(min(nice, GROUP_LAST)))
                break
            except BlockingIOError:
                time.sleep(0.1)
            except OSError:  # no such file: this Linux does not group processes
                break
    return nice


@contextlib.contextmanager
def ordinary() -> Iterator[None]:
    """Run the body of a `with` statement at the ordinary nice level: it is not timed, and may not
    end."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    if before < 0:
        prioritise(0)
    try:
        yield
    finally:
        if before < 0:
            prioritise(before)


def beside_timing() -> int:
    """The nice level of a process that works while another process is timed.

    0 if the timed process may have a level below 0; otherwise LAST.
    """
    if resource.getrlimit(resource.RLIMIT_NICE)[0] >= 20 - FIRST:
        return 0
    with contextlib.suppress(OSError, ValueError), open("/proc/self/status") as file:
        for line in file:
            if line.startswith("CapEff:"):
                return 0 if int(line.split()[1], 16) >> _SYS_NICE & 1 else LAST
    return LAST


def waited(process: int | str = "self") -> float:
    """Seconds that the living threads of a process were ready to run and waited for a core.

    0 if the operating system does not tell. These seconds of a sample do not belong to the kernel.
    """
    total = 0
    with contextlib.suppress(OSError, IndexError, ValueError):
        for thread in os.listdir(f"/proc/{process}/task"):
            with open(f"/proc/{process}/task/{thread}/schedstat", "rb") as file:
                total += int(file.read().split()[1])
    return total * 1e-9


def team_environment(threads: int) -> dict[str, str]:
    """Environment variables of a process that times kernels of `threads` threads.

    0 means one thread on each core. Variables that the user has set stay.
    """
    # Each thread of a kernel that takes every core is bound to a core, unless the user chooses
    # where threads run. Otherwise the scheduler may keep two threads on one core for whole rounds,
    # after one of them woke beside a busy builder: a kernel of 24 us then took 150 us. The threads
    # of a kernel that leaves cores free are not bound: two runs would share the first cores.
    found = {"OMP_NUM_THREADS": str(threads)} if threads else {}
    if takes_every_core(threads) and not any(name.startswith(BINDING) for name in os.environ):
        found["OMP_PROC_BIND"] = "true"
    return found


def takes_every_core(threads: int) -> bool:
    """Whether a kernel of `threads` threads (0: one thread a core) leaves no core free."""
    return threads == 0 or threads >= len(usable_cpus())
