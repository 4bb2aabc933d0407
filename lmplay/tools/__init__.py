"""The command `lmp_checkpoint`: converting, verifying, averaging and showing states."""
