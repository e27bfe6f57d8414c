"""How fast the updates are: against the machine's own matrix products, over its cores, and against peers."""
