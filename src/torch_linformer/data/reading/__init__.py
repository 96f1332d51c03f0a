"""Documents out of the files that people have: formats, columns, and what a task reads of a row."""
