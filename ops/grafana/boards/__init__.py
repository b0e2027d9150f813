"""One module for each dashboard, and `parts`, what they are made of."""
