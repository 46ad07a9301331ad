"""Who runs what now: Coordinator, agents, stages, and the state machine that holds authority."""
