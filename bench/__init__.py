"""Side-by-side measurements: what a request costs here, and beside other ways to send it. See README.md."""
