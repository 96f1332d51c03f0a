"""Slots of sequences: by a matrix, of segments, chosen by the input."""
