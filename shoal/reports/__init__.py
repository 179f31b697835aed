"""Reports of simulations and comparisons: pages in the look of the dashboard.

Each page is one file that needs nothing else.
"""
