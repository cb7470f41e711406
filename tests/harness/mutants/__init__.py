"""Ways to take a rule out of the product, and a run that does so: each must make a test fail that carries the rule's name."""
