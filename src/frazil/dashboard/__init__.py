"""Shows: the dashboard, on Streamlit. It asks the API with the key of whoever looks.

It imports nothing that stores, lands or queries: what it cannot ask the API for, it cannot show.
"""
