"""A swarm in one process on a virtual clock: links that fail, Nodes that hang, stages that obey the fence.

Nothing is computed: the token at a position of a session is a hash of both. What stages keep is how many positions of
each session they hold, and a step that does not continue there is refused, so a recovery that forgets inputs stands
still and one that repeats them is refused. Frames are real (`fabric/frames.py`): a late one carries its old address,
a corrupted one fails its checksum. Authority is the machine's (`fabric/transitions.py`), driven by
`fabric/simulation/coordinator.py`.

Covered: kills and hangs of stages, agents and Nodes, links that are cut one way or both, delayed, or that duplicate,
reorder and corrupt frames, a Coordinator that ends or pauses while another takes over. Not covered: memory, disks,
prices, and how long anything really takes.
"""

from inferswarm.fabric.simulation.changes import Choices
from inferswarm.fabric.simulation.swarm import SimulatedSwarm

__all__ = ["Choices", "SimulatedSwarm"]
