"""Which implementation computes an operation, what it needs of PyTorch, and how much it computes at a time."""
