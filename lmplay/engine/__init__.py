"""Training: opening a run, its loop, its stages, its steps."""
