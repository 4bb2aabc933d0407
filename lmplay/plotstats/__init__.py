"""The command `lmp_plotstats`: pictures, tables and a report of recorded statistics."""
