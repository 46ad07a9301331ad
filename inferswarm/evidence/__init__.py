"""What was observed: records with context, their store, and whether they apply."""
