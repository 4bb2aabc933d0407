"""What is minimised on a batch."""
