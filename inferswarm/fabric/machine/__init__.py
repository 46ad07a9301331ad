"""The steps of the authority machine, by subject. `fabric.transitions.apply` is the only way in."""
