"""What can be seen of a run without training: the plan's cost, samples and batches, the model, a checkpoint."""
