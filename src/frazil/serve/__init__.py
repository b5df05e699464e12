"""The API: FastAPI on granian. It knows who asks and speaks HTTP; what is asked, the query service answers.

No SQL is put together from what a client sent, and no tenant comes from anything but the API key.
"""
