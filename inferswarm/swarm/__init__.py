"""The façade: Swarm, Model, Service. Ties the packages together; what they decide is decided elsewhere."""

from inferswarm.swarm.model import Model
from inferswarm.swarm.service import Generation, Service
from inferswarm.swarm.swarm import Swarm

__all__ = ["Generation", "Model", "Service", "Swarm"]
