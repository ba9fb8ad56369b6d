"""Deep search over a generated encyclopedia of 21,000 texts, with questions of 2 to 6 hops."""
