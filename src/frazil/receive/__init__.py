"""The OTLP receiver: HTTP on granian and gRPC on grpc.aio, with all limits and refusals.

Never responds OK before the journal confirms that a request's records are durable. Start with `intake.py`.
"""
