"""Layer 3: runs and grids of runs. They write results/."""
