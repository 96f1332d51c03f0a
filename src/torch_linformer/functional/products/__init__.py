"""Matrix products: linear maps of channels, and mixtures of positions."""
