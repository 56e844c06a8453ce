"""The prior: models trained on records of other tasks, as a text file that ships with the package.

The first line is a JSON object: the version of the features, the records, the quality on held-out
tasks. Then follow LightGBM's text models, each after a heading line. Reading the file executes
nothing; `cost.trees` scores rows by the models without LightGBM.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from metasched.cost.features import CPU_FEATURE_SET, FeatureSet
from metasched.errors import DatabaseError, words
from metasched.files import atomic_write, read_json

FORMAT, VERSION = "metasched-prior", 1
_CUT = "=== member\n"
_PACKAGE = Path(__file__).resolve().parent.parent
_FOLDERS = (_PACKAGE / "traces", _PACKAGE.parent / "traces")


@dataclass(frozen=True)
class Prior:
    """Text models of an ensemble, and where they come from.

    Attributes:
        members: LightGBM's text of each model; the score is the mean of their scaled scores.
        scales: the factor of each member's scores, so that all members count alike.
        about: plain data for people: records, tasks, targets, quality on held-out tasks.
    """

    members: tuple[str, ...]
    scales: tuple[float, ...]
    about: dict[str, Any] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Write the file whole or not at all."""
        head = {
            "format": FORMAT, "version": VERSION,
            "feature_set": CPU_FEATURE_SET.name, "feature_version": CPU_FEATURE_SET.version,
            "features": len(CPU_FEATURE_SET.names), "scales": self.scales, **self.about,
        }  # fmt: skip
        text = json.dumps(head) + "\n" + "".join(f"{_CUT}{m.strip()}\n" for m in self.members)
        atomic_write(path, text)

    @staticmethod
    def load(path: Path) -> Prior:
        """Read a file.

        Raises:
            DatabaseError: the file cannot be read, is no prior, or is for other features.
        """
        try:
            head, _, body = path.read_text(encoding="utf-8").partition("\n")
            about = read_json(head)
        except (OSError, ValueError) as error:
            raise DatabaseError(f"prior {path} cannot be read: {words(error)}") from None
        if not isinstance(about, dict) or about.pop("format", None) != FORMAT:
            raise DatabaseError(f"{path} is no prior: its first line does not say {FORMAT!r}")
        version = about.pop("version", None)
        if version != VERSION:
            raise DatabaseError(f"prior {path} has version {version!r}, this reads {VERSION}")
        given = tuple(about.pop(k, None) for k in ("feature_set", "feature_version", "features"))
        known = CPU_FEATURE_SET
        if given not in (
            (known.name, known.version, len(known.names)),
            (None, known.version, len(known.names)),  # older files name no set
        ):
            raise DatabaseError(
                f"prior {path} was trained on features of version {given[1]}, not "
                f"{known.version}: train it anew with `metasched db --write-prior`"
            )
        members: Sequence[str] = body.split(_CUT)[1:]
        scales = about.pop("scales", ())
        if not members or len(members) != len(scales):
            raise DatabaseError(f"prior {path} holds {len(members)} models, {len(scales)} scales")
        return Prior(tuple(members), tuple(scales), about)


def joined(priors: Sequence[Prior]) -> Prior | None:
    """One prior of all members; the only prior as it is, and None for no prior.

    The records and tasks of the priors add up.
    """
    if len(priors) < 2:
        return priors[0] if priors else None
    about = {key: sum(p.about.get(key, 0) for p in priors) for key in ("records", "tasks")}
    members = tuple(member for prior in priors for member in prior.members)
    return Prior(members, tuple(scale for prior in priors for scale in prior.scales), about)


def shipped(mcpu: str, features: FeatureSet = CPU_FEATURE_SET) -> list[Path]:
    """The prior files of this installation for a target: the file of the CPU, by LLVM's name of the
    CPU; all files for a CPU without one, because several machines' priors together rank the
    programs of an unknown machine better than one of the priors."""
    files = every_shipped(features)
    return [file for file in files if file.name == f"prior.{mcpu}.txt"] or files


def every_shipped(features: FeatureSet = CPU_FEATURE_SET) -> list[Path]:
    """The prior files of this installation, of all machines. Only the built-in feature set has
    priors."""
    if features.name != CPU_FEATURE_SET.name:
        return []
    files = {file.name: file for at in reversed(_FOLDERS) for file in at.glob("prior*.txt")}
    return sorted(files.values())
