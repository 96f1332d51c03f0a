"""Models and run folders on disk: made, opened, described, locked; and the device a model runs on."""
