"""The dense block strategy: embedding, decoder blocks, head, in a chain."""
