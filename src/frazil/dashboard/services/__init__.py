"""The Services page: the graph of calls, its layout, the table of services, and one service."""
