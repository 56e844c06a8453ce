"""SharedQueue: the requests of a round that are left, in memory shared by all processes.

Each process has a part of the requests and takes from its front. When the part is empty, the
process takes from the end of the longest other part. So all processes end together, and none waits
for messages. There is no lock: a request that two processes take at the same time is replayed by
both, with the same result.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator

from metasched.watch import NOTE

_PLACE = 8 + NOTE  # bytes of the note of what a process does at present


class SharedQueue:
    """The requests that are left: a first and a last (exclusive) position for each part."""

    def __init__(self, parts: int, fd: int | None = None) -> None:
        """Create a queue, or map the queue of a file descriptor that was passed to a worker."""
        self.parts = parts
        self._handed = fd is not None
        self.fd = os.memfd_create("metasched-queue") if fd is None else fd
        size = (16 + _PLACE) * parts
        if not self._handed:
            os.ftruncate(self.fd, size)
        self._memory = mmap.mmap(self.fd, size)
        whole = memoryview(self._memory)
        self._left = whole[: 16 * parts].cast("q")
        self._places = whole[16 * parts :]

    def deal(self, count: int) -> None:
        """Divide `count` new requests into parts of equal size."""
        for part in range(self.parts):
            self._left[2 * part] = count * part // self.parts
            self._left[2 * part + 1] = count * (part + 1) // self.parts

    def take(self, part: int) -> Iterator[int]:
        """The requests that the process of a part has to replay, until none is left."""
        left = self._left
        while True:
            if (first := left[2 * part]) < left[2 * part + 1]:
                left[2 * part] = first + 1
                yield first
                continue
            longest = max(range(self.parts), key=lambda n: left[2 * n + 1] - left[2 * n])
            if (last := left[2 * longest + 1] - 1) < left[2 * longest]:
                return
            left[2 * longest + 1] = last
            yield last

    @property
    def left(self) -> bool:
        """Whether there is a request that no process has taken."""
        return any(self._left[2 * n] < self._left[2 * n + 1] for n in range(self.parts))

    def note(self, part: int) -> memoryview:
        """Where the process of a part writes which function of a user it calls."""
        return self._places[_PLACE * part + 8 : _PLACE * (part + 1)]

    def enter(self, part: int, request: int) -> None:
        """Note that the process of a part begins a request."""
        self._places[_PLACE * part : _PLACE * part + 8] = request.to_bytes(8, "little")

    def last(self, part: int) -> tuple[int, str]:
        """The last request that the process of a part began, and the function of a user that it was
        calling; empty when it called none."""
        text = bytes(self.note(part)).split(b"\0", 1)[0]
        begun = bytes(self._places[_PLACE * part : _PLACE * part + 8])
        return int.from_bytes(begun, "little"), text.decode(errors="replace")

    def close(self) -> None:
        """Unmap the memory; it is freed when all processes have unmapped it."""
        self._left.release()
        self._places.release()
        self._memory.close()
        if not self._handed:
            os.close(self.fd)
