"""`python -m frazil.tables` prints the reference page of all tables."""

from frazil.tables import SIGNALS, markdown, table_spec

print(markdown(table_spec(signal) for signal in SIGNALS), end="")
