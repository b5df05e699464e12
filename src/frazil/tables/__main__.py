"""`python -m frazil.tables` prints the reference documentation of all tables."""

from frazil.tables import markdown, table_specs

print(markdown(table_specs().values()), end="")
