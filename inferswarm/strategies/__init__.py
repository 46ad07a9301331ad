"""What is legal: one model as a planning problem, its text and its bytes. Torch-free."""
