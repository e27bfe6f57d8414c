"""Runs and grids of runs. They write results/."""
