"""The singular values of attention, and the K that follows from them."""
