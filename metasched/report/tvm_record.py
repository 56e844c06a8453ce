"""Read times of Apache TVM from a record file: TVM is too large to be a dependency.

The file is a JSON list of {"op": "gmm", "shape": [1, 1024, 1024, 1024], "seconds": 0.0148}.
"""

from __future__ import annotations

import math
from pathlib import Path

from metasched.errors import MetaschedError, clipped
from metasched.files import read_json

Times = dict[tuple[str, tuple[int, ...]], float]


def load_record(path: str | Path) -> Times:
    """Seconds by operator and shape; of two entries for an operator, the better time counts.

    Raises MetaschedError, which names the file and the entry that cannot be read.
    """
    try:
        data = read_json(Path(path).read_bytes())
    except OSError as error:
        raise MetaschedError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise MetaschedError(f"{path}: not valid JSON ({error})") from None
    if not isinstance(data, list):
        raise MetaschedError(f"{path}: must hold a list of {{op, shape, seconds}}")
    times: Times = {}
    for number, entry in enumerate(data):
        try:
            key = (str(entry["op"]).lower(), tuple(int(v) for v in entry["shape"]))
            seconds = float(entry["seconds"])
        except (KeyError, TypeError, ValueError) as error:
            what = clipped(f"{type(error).__name__} {error}")
            raise MetaschedError(f"{path}: entry {number}: {what}") from None
        if not (math.isfinite(seconds) and seconds > 0):
            raise MetaschedError(f"{path}: entry {number}: seconds must be positive: {seconds}")
        times[key] = min(seconds, times.get(key, math.inf))
    return times
