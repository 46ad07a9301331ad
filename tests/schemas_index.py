"""Writes docs/schemas from the records of the package.

`python -m tests.schemas_index` writes them; with `--check` it only says whether they are up to date.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from inferswarm.campaigns.schemas import SCHEMAS, schema_text

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "schemas"
COMMAND = "python -m tests.schemas_index"


def wanted() -> dict[str, str]:
    """Return the text of every file of the folder by its name."""
    return {f"{name}.schema.json": schema_text(name) for name in SCHEMAS}


def there() -> dict[str, str]:
    """Return what the folder holds."""
    return {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*")}


def main(arguments: Sequence[str]) -> int:
    """Write the schemas, or check them; return the exit status."""
    files = wanted()
    if "--check" in arguments:
        if there() == files:
            return 0
        sys.stderr.write(f"docs/schemas is out of date: {COMMAND}\n")
        return 1
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path in FOLDER.glob("*"):
        path.unlink()
    for name, text in files.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
