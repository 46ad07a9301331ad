"""The demonstration: one model that fits on neither of two Nodes, answered over both, every claim checked."""

from inferswarm.demo.run import Terminal, run_demo

__all__ = ["Terminal", "run_demo"]
