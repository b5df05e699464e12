"""What services log between requests."""

from __future__ import annotations

from random import Random
from typing import Any

from frazil.demo.plan import PlannedLine

# The chance that an instance says something in any one second.
_CHANCE = 0.03


def background_line(service: str, random: Random) -> PlannedLine | None:
    """A line of this service for this second; mostly there is none."""
    if random.random() >= _CHANCE:
        return None
    attributes: dict[str, Any]
    kind = random.choice(("pool", "gc", "config", "health", "disk", "clock"))
    if kind == "pool":
        used, size = random.randint(0, 10), 10
        attributes = {"pool.used": used, "pool.size": size, "pool.saturated": used == size}
        return PlannedLine(0.0, "DEBUG", f"connection pool: {used} of {size} in use", attributes)
    if kind == "gc":
        pause, generation = round(random.lognormvariate(0.5, 0.8), 3), random.randint(0, 2)
        attributes = {"gc.pause_ms": pause, "gc.generation": generation, "gc.collected": [7, generation, 31]}
        return PlannedLine(0.0, "DEBUG", f"gc generation {generation} took {pause} ms", attributes)
    if kind == "config":
        revision = f"{random.getrandbits(28):07x}"
        attributes = {
            "revision": revision,
            "flags": {"one_page_checkout": True, "dark_mode": random.random() < 0.5},
        }
        return PlannedLine(
            0.0, "INFO", "configuration reloaded", attributes, "shop.config.reloaded", structured=True
        )
    if kind == "health":
        return PlannedLine(
            0.0, "INFO", f"{service}: health check passed", {"checks": ["db", "cache", "self"]}
        )
    if kind == "disk":
        free = round(random.uniform(4.0, 14.0), 1)
        return PlannedLine(0.0, "WARN", f"only {free} % of /var/log is free", {"disk.free_percent": free})
    return PlannedLine(0.0, "WARN", f"clock is {random.randint(20, 90)} ms off", {"ntp.stratum": 3})
