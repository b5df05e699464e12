"""The dashboard: Streamlit pages over the API. Every request carries the API key of the logged-in user.

It imports nothing that stores, lands or queries. Start reading at `script/main.py`; `run` starts the server.
"""
