"""Models and run folders on disk: made, opened, described, locked; and the device a model runs on.

A folder or option that cannot be used is an `InputError` that names it and the remedy.
"""
