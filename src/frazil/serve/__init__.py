"""The HTTP API: FastAPI on granian. Authenticates callers and passes their queries to the query service.

Values from clients are never put into SQL text, and the tenant comes only from the API key. Start reading at
`app`.
"""
