"""A long run under load and random losses: what must hold then, checked all the time and again at the end."""
