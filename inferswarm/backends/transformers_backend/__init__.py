"""Executing the units of a model that Hugging Face transformers builds. Importing this package loads nothing."""
