"""What simulations and comparisons end with: pages in the look of the dashboard, each one file that
needs nothing else."""
