"""Deep search over a generated encyclopedia of 22,000 texts, with questions of 2 to 6 hops."""
