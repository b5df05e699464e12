"""`python -m frazil.tables` prints the reference page of all tables."""

from frazil.tables import SET_ASIDE, SIGNALS, landed_spec, markdown

print(markdown([*(landed_spec(signal) for signal in SIGNALS), SET_ASIDE]), end="")
