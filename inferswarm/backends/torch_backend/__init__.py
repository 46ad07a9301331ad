"""Executing units with torch. Importing this package loads nothing; its modules load torch."""
