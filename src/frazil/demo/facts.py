"""The facts of one visit: user, product, quantity, price."""

from __future__ import annotations

from random import Random
from typing import Any

Facts = dict[str, Any]

_PRODUCTS: tuple[tuple[str, str, str, float], ...] = (
    ("SKU-1001", "Trail running shoes", "shoes", 119.90),
    ("SKU-1002", "Rain shell, ultralight", "jackets", 189.00),
    ("SKU-1003", "Merino base layer", "base-layers", 64.50),
    ("SKU-1004", "Two-person tent", "tents", 349.00),
    ("SKU-1005", "Down sleeping bag", "sleeping", 279.95),
    ("SKU-1006", "Titanium mug 450 ml", "kitchen", 39.00),
    ("SKU-1007", "Gas stove, folding", "kitchen", 54.90),
    ("SKU-1008", "Head torch 400 lm", "lights", 44.95),
    ("SKU-1009", "Trekking poles, carbon", "poles", 129.00),
    ("SKU-1010", "Backpack 38 l", "packs", 159.00),
    ("SKU-1011", "Dry bag 10 l", "packs", 19.90),
    ("SKU-1012", "Wool socks, pair", "socks", 18.50),
    ("SKU-1013", "Climbing harness", "climbing", 74.00),
    ("SKU-1014", "Chalk bag", "climbing", 22.00),
    ("SKU-1015", "Map of the Alps 1:50 000", "books", 14.80),
)
_TERMS = ("rain jacket", "tent 2p", "socks", "stove gas", "merino", "head torch", "poles carbon", "größe 43")
_AGENTS = (
    "Mozilla/5.0 (X11; Linux x86_64; rv:143.0) Gecko/20100101 Firefox/143.0",
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 Chrome/141.0 Safari/537.36",
    "Mozilla/5.0 (iPhone; CPU iPhone OS 18_6 like Mac OS X) AppleWebKit/605.1.15 Mobile Safari/604.1",
    "ShopApp/7.3.1 (Android 15; Pixel 8)",
    "Googlebot/2.1 (+http://www.google.com/bot.html)",
)
_COUNTRIES = (("DE", "EUR", "10115"), ("FR", "EUR", "75011"), ("GB", "GBP", "E1 6AN"), ("CH", "CHF", "8004"))
_CARRIERS = ("dhl", "ups", "colissimo", "royal-mail")
_USERS = 400


def visit(random: Random) -> Facts:
    """Draw the facts of one visit."""
    product_id, product, category, price = random.choice(_PRODUCTS)
    country, currency, postal_code = random.choice(_COUNTRIES)
    user = int(_USERS * random.random() ** 2)  # some users visit far more often than others
    quantity = random.choice((1, 1, 1, 2, 2, 3, 5))
    others = random.sample(_PRODUCTS, random.randint(0, 3))
    total = round(price * quantity + sum(other[3] for other in others), 2)
    return {
        "product_id": product_id,
        "product": product,
        "category": category,
        "price": price,
        "quantity": quantity,
        "skus": [product_id, *(other[0] for other in others)],
        "items": quantity + len(others),
        "total": total,
        "currency": currency,
        "country": country,
        "address": {"country": country, "postal_code": postal_code, "express": random.random() < 0.2},
        "user_id": f"u-{10_000 + user}",
        "user_name": f"customer{user:03d}",
        "session_id": f"s-{random.getrandbits(48):012x}",
        "order_id": f"o-{random.getrandbits(40):010x}",
        "term": random.choice(_TERMS),
        "hits": random.randint(0, 480),
        "page": random.randint(1, 4),
        "stock": random.randint(0, 900),
        "gift": random.random() < 0.1,
        "new_customer": random.random() < 0.15,
        "fraud_score": round(random.betavariate(1.2, 12.0), 4),
        "carrier": random.choice(_CARRIERS),
        "rate": round(random.uniform(0.85, 1.18), 5),
        "batch": random.randint(5, 240),
        "user_agent": random.choice(_AGENTS),
        "client_address": f"203.0.113.{random.randint(1, 254)}",
        "experiment": random.random() < 0.2,
    }
