"""A trained model behind HTTP: what requests say, the batches they are computed in, answers and counts."""
