"""The door `lmp_plotstats`: pictures, tables and a report of recorded statistics."""
