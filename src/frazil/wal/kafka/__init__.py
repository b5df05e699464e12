"""Kafka in place of segments: requests become messages, as a Collector's Kafka exporter writes them.

Never acks before all in-sync replicas have said that they hold every message of a request.
"""
