"""One softmax over slots, exact tokens and a window: the operation, its parts and its implementations."""
