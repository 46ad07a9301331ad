"""`ray start` with patience: Ray ends a node that is not there after 30 s, which no setting changes.

`python -m tests.integration.ray_start start ARGUMENTS` does what `ray start ARGUMENTS` does, only that on a loaded
machine it waits longer for the node's own processes.
"""

from __future__ import annotations

import time
from typing import Any

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
            time.sleep(0.1)


services.get_node = get_node

if __name__ == "__main__":
    main()
