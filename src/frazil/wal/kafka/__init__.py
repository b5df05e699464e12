"""Kafka as the WAL: requests become messages in the format of the OpenTelemetry Collector's Kafka exporter.

Never acknowledges a request before all in-sync replicas have confirmed every one of its messages.
"""
