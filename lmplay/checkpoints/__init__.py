"""Checkpoint files: their format and rotation, saving in the background, and which state a run resumes from."""
