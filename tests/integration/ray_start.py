"""`ray start` that knows what it waits for: Ray ends a node that is not there after 30 s, which no setting changes.

`python -m tests.integration.ray_start start ARGUMENTS` does what `ray start ARGUMENTS` does. Only, on a loaded
machine it waits longer for the node's own processes, and where one of them has ended it does not wait at all.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import psutil
import ray._private.services as services
from ray.scripts.scripts import main

START_SECONDS = 150.0
_get_node = services.get_node


def get_node(*arguments: Any) -> Any:
    """Return what Ray's service of that name returns, as soon as it knows the node."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            return _get_node(*arguments)
        except RuntimeError:
            if time.monotonic() > deadline:
                raise
        children = psutil.Process().children()
        ended = [child.name() for child in children if child.status() == psutil.STATUS_ZOMBIE]
        if ended:
            sys.exit(f"of the node's processes there have ended: {ended}; see its logs")
        time.sleep(0.1)


services.get_node = get_node

if __name__ == "__main__":
    main()
