"""What can be learned: one file a kind of task, with its labels, loss, scores and what a model of it has to beat."""
