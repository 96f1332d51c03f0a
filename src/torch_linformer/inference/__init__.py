"""A trained model at work: predictions, scores, text that goes on, export."""
