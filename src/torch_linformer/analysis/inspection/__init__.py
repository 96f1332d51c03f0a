"""One document as a model reads it: what attends to what, and the page that shows it."""
