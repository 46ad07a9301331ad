"""The process that executes an arm's notebook, in the scratch directory of its run, and ends with who started it."""

from __future__ import annotations

import sys
from pathlib import Path

from inferswarm.campaigns.child_layout import ORDERS, ChildOrders
from inferswarm.campaigns.processes import die_with_parent
from inferswarm.documents import read_document

_UNUSED_CHECKER = "rfc3987_syntax"
"""An optional package of jsonschema's, which reads a grammar for 1.3 s to check a format that no notebook has."""


def main(arguments: list[str]) -> None:
    """Execute what the orders beside the working directory say, as a child of the process that is named."""
    (parent_pid,) = arguments
    die_with_parent(int(parent_pid))
    orders = read_document(ChildOrders, Path("..", ORDERS).read_bytes(), ORDERS)
    sys.modules[_UNUSED_CHECKER] = None  # type: ignore[assignment]  # as if it were not installed
    from inferswarm.campaigns.executing import execute

    execute(orders.parameters)


if __name__ == "__main__":
    main(sys.argv[1:])
