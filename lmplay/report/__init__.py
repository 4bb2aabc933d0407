"""What is said while a run goes on, and who else hears of it."""
