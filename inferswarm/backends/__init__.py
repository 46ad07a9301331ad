"""How a unit executes: backends behind one seam. Importing this package loads no backend."""
