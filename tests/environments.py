"""Virtual environments that hold exactly what an extra declares: made from what is installed here, by links."""

from __future__ import annotations

import venv
from collections.abc import Iterable
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]


def declared_closure(extras: Iterable[str]) -> dict[str, Distribution]:
    """Return all distributions that `inferswarm[extras]` needs, by name, without inferswarm itself."""
    found: dict[str, Distribution] = {}
    waiting = [("inferswarm", frozenset(extras))]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        name, wanted = waiting.pop()
        if (name, wanted) in seen:
            continue
        seen.add((name, wanted))
        current = distribution(name)
        if name != "inferswarm":
            found[name] = current
        for text in current.requires or ():
            requirement = Requirement(text)
            contexts = [{"extra": extra} for extra in wanted] or [{"extra": ""}]
            if requirement.marker is None or any(requirement.marker.evaluate(context) for context in contexts):
                waiting.append((requirement.name.lower().replace("_", "-"), frozenset(requirement.extras)))
    return found


def make_environment(directory: Path, extras: Iterable[str]) -> Path:
    """Make a virtual environment with `inferswarm[extras]` and nothing else; return its interpreter."""
    venv.create(directory, with_pip=False, symlinks=True)
    (site,) = directory.glob("lib/python*/site-packages")
    for installed in declared_closure(extras).values():
        for top in {path.parts[0] for path in installed.files or () if path.parts[0] not in ("..", "__pycache__")}:
            target = Path(str(installed.locate_file(top)))
            if target.exists() and not (site / top).exists():
                (site / top).symlink_to(target)
    (site / "inferswarm.pth").write_text(f"{ROOT}\n")
    return directory / "bin" / "python"
