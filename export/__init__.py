"""Model + objective -> bundle: captured once as a pure graph, lowered, and checked against eager
torch."""
