"""What becomes of a document that is longer than a model reads at once."""

OVERFLOW = ("cut", "windows")  # its end is left out; or it is read as overlapping windows
