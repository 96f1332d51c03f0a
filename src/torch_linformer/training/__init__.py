"""A training run, from its settings to a model folder with its report."""
