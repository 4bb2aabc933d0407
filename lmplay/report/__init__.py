"""What the user and the callbacks are told of a run."""
