"""Every way in which a record is made to say something else, each with the law that must not let it pass.

A control changes one thing. Most then carry the change up as far as its author would: what is left to notice it is
the law that the control is for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tests.adversarial.forging import Forgery

CONTROLS: list[Control] = []


class Control(NamedTuple):
    """One deliberate defect: the root that it is made in, the law that must be broken or unproven, and how."""

    name: str
    law: str
    root: str
    change: Callable[[Forgery], object]


def control(law: str, root: str = "green") -> Callable[[Callable[[Forgery], object]], Callable[[Forgery], object]]:
    """Make a control of a function; its name is the function's."""

    def register(change: Callable[[Forgery], object]) -> Callable[[Forgery], object]:
        CONTROLS.append(Control(change.__name__.replace("_", " "), law, root, change))
        return change

    return register
