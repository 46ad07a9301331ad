"""Engines: who starts and watches the swarm's processes."""
