"""Documents out of the files that people have: formats, columns, and what a task reads of a row.

Whatever cannot be read or used is an `InputError` that names the file, the row and the remedy.
"""
