"""What the performance figures come from. `python -m bench` prints the table of the README."""
