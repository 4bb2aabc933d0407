"""Writing texts with a model."""
