"""How weights change: parameter groups, optimizers, schedules, freezing and a look at gradients.  Math floor."""
