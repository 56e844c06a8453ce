"""SharedQueue: which of a round's requests are left, in memory that all processes see.

Each process has a part of the requests, takes from its front, and when it is empty from the end of
the longest other one, so all end together and none waits for another's messages. Nothing is locked:
a request that two take at the same time is replayed by both, and they find the same.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator


class SharedQueue:
    """The first and the last (exclusive) position that is left of each part."""

    def __init__(self, parts: int, fd: int | None = None) -> None:
        """A new queue, or one by the file descriptor that a worker was handed (`fd`)."""
        self.parts = parts
        self._handed = fd is not None
        self.fd = os.memfd_create("metasched-queue") if fd is None else fd
        if not self._handed:
            os.ftruncate(self.fd, 16 * parts)
        self._memory = mmap.mmap(self.fd, 16 * parts)
        self._left = memoryview(self._memory).cast("q")

    def deal(self, count: int) -> None:
        """Give out `count` requests anew, in parts of one size."""
        for part in range(self.parts):
            self._left[2 * part] = count * part // self.parts
            self._left[2 * part + 1] = count * (part + 1) // self.parts

    def take(self, part: int) -> Iterator[int]:
        """What the process of a part has to do, until nothing is left."""
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

    def close(self) -> None:
        """Let go of the memory; the queue is gone when all have."""
        self._left.release()
        self._memory.close()
        if not self._handed:
            os.close(self.fd)
