"""A simulated web shop that sends believable telemetry through the real OTLP exporters.

Knows nothing of the receiver: it talks to it as any instrumented system would.
"""

from frazil.demo.clock import Clock, VirtualClock, WallClock
from frazil.demo.options import Compression, DemoOptions, DemoTotals, Incident, Protocol
from frazil.demo.run import run_demo

__all__ = [
    "Clock",
    "Compression",
    "DemoOptions",
    "DemoTotals",
    "Incident",
    "Protocol",
    "VirtualClock",
    "WallClock",
    "run_demo",
]
