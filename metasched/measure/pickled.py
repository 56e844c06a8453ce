"""Pickles values of any depth for worker processes."""

from __future__ import annotations

import pickle
import sys
import threading
from typing import Any

from metasched.errors import MeasureError

_UNPICKLABLE = (pickle.PicklingError, AttributeError, TypeError)


def dump(value: Any) -> bytes:
    """Pickle a value of any depth: sums of thousands of terms exceed the recursion limit."""
    try:
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except RecursionError:
        return _dump_deep(value)
    except _UNPICKLABLE as error:
        raise MeasureError(f"this cannot be sent to a worker: {error}") from error


def _dump_deep(value: Any) -> bytes:
    """Pickle in a thread with a large stack."""
    out: list[bytes | BaseException] = []

    def work() -> None:
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(400_000)
        try:
            out.append(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))
        except (RecursionError, *_UNPICKLABLE) as error:
            out.append(error)
        finally:
            sys.setrecursionlimit(limit)

    before = threading.stack_size(512 << 20)
    thread = threading.Thread(target=work)
    thread.start()
    threading.stack_size(before)
    thread.join()
    if isinstance(out[0], BaseException):
        raise MeasureError(f"this cannot be sent to a worker: {out[0]}") from out[0]
    return out[0]
