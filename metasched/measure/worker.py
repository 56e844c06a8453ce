"""A worker process: `python -m metasched.measure.worker` runs jobs that arrive on its stdin.

Frames on both pipes are an 8-byte length and a pickle. A job is (number, "module:function",
pickled arguments). The first answer is ("ready", pid). A job gives ("start", number) when the work
begins, which starts the parent's clock. It ends with ("value", number, pickled result) or ("error",
number, type, text, traceback). When stdin closes, a thread ends the process at once, whatever the
main thread is doing. So no worker outlives its parent, even if SIGKILL ended the parent.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib
import os
import pickle
import queue
import resource
import signal
import struct
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any, BinaryIO

from metasched.measure.priority import prioritise

_LENGTH = struct.Struct("<Q")
_PR_SET_PDEATHSIG = 1  # of <linux/prctl.h>
MAX_STDERR = 64 << 20  # bytes a worker may write into files, so that endless printing ends


def frame(message: Any) -> bytes:
    """A message as it travels: length and pickle."""
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(body)) + body


def unframe(buffer: bytearray) -> list[Any]:
    """Remove the complete messages from the front of `buffer` and return them."""
    messages = []
    while len(buffer) >= _LENGTH.size:
        size = _LENGTH.unpack_from(buffer)[0] + _LENGTH.size
        if len(buffer) < size:
            break
        messages.append(pickle.loads(bytes(memoryview(buffer)[_LENGTH.size : size])))
        del buffer[:size]
    return messages


def resolve(name: str) -> Callable[..., Any]:
    """The function called "module:function"."""
    module, _, function = name.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return found


def main(arguments: list[str] | None = None, reserved: int = 0) -> None:
    """Serve jobs until stdin closes; --memory does not count the `reserved` bytes of addresses."""
    parser = argparse.ArgumentParser(prog="metasched.measure.worker")
    parser.add_argument("--nice", type=int, default=0, help="nice level; below 0 if permitted")
    parser.add_argument("--cpus", type=int, nargs="+", default=[], help="processors to run on")
    parser.add_argument("--memory", type=int, default=0, help="bytes of address space; 0: no limit")
    parser.add_argument("--preload", default="", help="module to import while nothing is to do")
    parser.add_argument("--plugin", action="append", default=[], help="plug-in file to load then")
    options = parser.parse_args(arguments)
    if options.cpus:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, options.cpus)
    _confine(options.nice, options.memory and options.memory + reserved)
    source = os.fdopen(os.dup(0), "rb", buffering=0)
    sink = os.fdopen(os.dup(1), "wb", buffering=0)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)  # native code that reads or prints must not touch the protocol
    os.dup2(2, 1)
    jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(source, jobs), daemon=True).start()
    _send(sink, ("ready", os.getpid()))
    if options.preload:
        with contextlib.suppress(ImportError):  # the first job will report the error
            importlib.import_module(options.preload)
    broken = _loaded(options.plugin)
    while True:
        number, function, payload = jobs.get()
        if broken is None:
            _send(sink, _work(sink, number, function, payload))
        else:
            _send(sink, ("start", number))
            _send(sink, _failed(number, broken))


def _confine(nice: int, memory: int) -> None:
    """Ignore Ctrl-C, end when the parent dies, write no core files; set priority and limits."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A stopped process (`Worker.pause`) continues when its parent dies, so that it can end.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    soft = MAX_STDERR if hard == resource.RLIM_INFINITY else min(MAX_STDERR, hard)
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    if nice:
        prioritise(nice)
    if memory:
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))


def _receive(source: BinaryIO, jobs: queue.SimpleQueue[Any]) -> None:
    """Queue the jobs as they come; the end of the pipe is the end of the process."""
    buffer = bytearray()
    while True:
        chunk = source.read(1 << 20)
        if not chunk:
            os._exit(0)
        buffer += chunk
        for message in unframe(buffer):
            jobs.put(message)


def _loaded(plugins: list[str]) -> Exception | None:
    """Load plug-in files; returns the exception of a file that failed, or None."""
    try:
        for file in plugins:  # the registry is imported only where there are plug-ins
            resolve("metasched.registry:load_plugin")(file)
    except Exception as error:  # code of users: each job answers with this error
        return error
    return None


def _failed(number: int, error: Exception) -> tuple[Any, ...]:
    """The answer of a job that an exception ended."""
    text = f"{error}" or type(error).__name__
    return "error", number, type(error).__name__, text, traceback.format_exc(limit=-8)


def _work(sink: BinaryIO, number: int, name: str, payload: bytes) -> tuple[Any, ...]:
    """Run one job; any exception becomes an answer."""
    started = False
    try:
        function = resolve(name)
        arguments = pickle.loads(payload)
        _send(sink, ("start", number))
        started = True
        return "value", number, pickle.dumps(function(*arguments), pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # the outermost frame: any failure of a job is an answer
        if not started:
            _send(sink, ("start", number))
        return _failed(number, error)


def _send(sink: BinaryIO, message: tuple[Any, ...]) -> None:
    data = memoryview(frame(message))
    try:
        while data:
            data = data[sink.write(data) :]
    except BrokenPipeError:
        os._exit(0)


if __name__ == "__main__":
    sys.modules["metasched.measure.worker"] = sys.modules["__main__"]
    main()
