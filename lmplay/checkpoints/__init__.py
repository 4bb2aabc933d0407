"""Checkpoint files: their format, the states kept of a model, saving behind the training, and what a run goes on from."""
