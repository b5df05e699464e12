"""A simulated web shop that sends realistic telemetry with the OpenTelemetry SDK.

It is independent of the receiver and sends to it like any instrumented system. Start reading in `run`.
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
