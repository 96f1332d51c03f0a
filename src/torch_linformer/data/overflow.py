"""How a document is read that is longer than the model's input."""

OVERFLOW = ("cut", "windows")  # its end is left out, or it is read as overlapping windows
