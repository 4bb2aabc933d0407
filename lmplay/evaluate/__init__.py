"""The command `lmp_eval`: what trained models are worth on data sets, side by side."""
