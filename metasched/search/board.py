"""Board: which of a round's requests are left, in memory that all processes see.

Each process has a part of the requests, takes from its front, and when it is empty from the end of
the longest other one, so all end together and none waits for another's messages. Nothing is locked:
a request that two take at the same time is replayed by both, and they find the same.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator


class Board:
    """The first and the last (exclusive) position that is left of each part."""

    def __init__(self, parts: int, path: str | None = None) -> None:
        """A new board, or that of another process by its `path`; OSError when it is gone."""
        self.parts = parts
        if path is None:
            self._fd = os.memfd_create("metasched-board")
            os.ftruncate(self._fd, 16 * parts)
        else:
            self._fd = os.open(path, os.O_RDWR)
        self._memory = mmap.mmap(self._fd, 16 * parts)
        self._left = memoryview(self._memory).cast("q")

    @property
    def path(self) -> str:
        """Where another process of this user finds the board while this one has it."""
        return f"/proc/{os.getpid()}/fd/{self._fd}"

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
        """Let go of the memory."""
        self._left.release()
        self._memory.close()
        os.close(self._fd)
