"""What a text that a model has written is worth: named rewards, and functions of other modules, run in a process of their own."""
