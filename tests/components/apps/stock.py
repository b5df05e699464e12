"""A FastAPI application without a word of OpenTelemetry: one route queries SQLite, one fails."""

from __future__ import annotations

import logging
import sqlite3

from fastapi import FastAPI

logging.basicConfig(level=logging.INFO)
log = logging.getLogger("stock")
app = FastAPI()


@app.get("/stock/{item}")
def stock(item: str) -> dict[str, int]:
    database = sqlite3.connect(":memory:")
    try:
        count = database.cursor().execute("SELECT length(?)", (item,)).fetchone()[0]
    finally:
        database.close()
    log.info("%s items of %s in stock", count, item)
    return {"count": count}


@app.get("/broken")
def broken() -> None:
    raise RuntimeError("the stock is broken")
