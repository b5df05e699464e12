"""The OTLP receiver: HTTP on granian and gRPC on grpc.aio, with every bound and refusal.

Never answers OK before the journal says that a request's records are durable.
"""
