"""The dashboard in a real browser, in front of a real `frazil up`."""
