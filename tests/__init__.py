"""Tests, and the helpers that they share (`tests.models`)."""
