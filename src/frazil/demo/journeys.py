"""The simulated shop as data: endpoints of its services, and user journeys through them."""

from __future__ import annotations

import re
from typing import Literal

from frazil.demo.steps import (
    Cached,
    Call,
    DatabaseQuery,
    Endpoint,
    External,
    Fault,
    Journey,
    LogLine,
    Measure,
    Parallel,
    Publish,
    Step,
    Work,
)

_SHOPPER = ("user_id", "session_id")
_CRASH = Fault("RuntimeError", "unexpected state: response already committed", 500, 13, chance=0.002)
_POOL = Fault("psycopg_pool.PoolTimeout", "couldn't get a connection after 2.00 sec", 503, 14, chance=0.003)

ERRORS_SERVICE = "catalog"
"""The service that fails in the incident `errors`: a bad release fails for products without a price tier."""
ERRORS_FAULT = Fault("KeyError", "'price_tier'", 500, 13, chance=0.6)
SLOW_STORE = "shop-db"
"""The store that is slow in the incident `slow`, because of lock waits. The slowest statements time out."""


def _endpoint(
    service: str,
    protocol: Literal["http", "grpc", "consumer", "cron"],
    name: str,
    milliseconds: float,
    *parts: Step | LogLine | Measure | Fault,
    method: str = "GET",
) -> Endpoint:
    return Endpoint(
        service,
        protocol,
        name,
        milliseconds,
        steps=tuple(part for part in parts if not isinstance(part, LogLine | Measure | Fault)),
        method=method,
        lines=tuple(part for part in parts if isinstance(part, LogLine)),
        measures=tuple(part for part in parts if isinstance(part, Measure)),
        faults=tuple(part for part in parts if isinstance(part, Fault)),
    )


def _page(path: str, gateway: str, method: str = "GET", milliseconds: float = 4.0) -> Endpoint:
    """Return a page of the frontend, which renders the response of one gateway endpoint."""
    text = f"{method} {path} for {{user_id}}"
    line = LogLine("INFO", text, (*_SHOPPER, "country", "new_customer"), chance=0.3)
    return _endpoint(
        "frontend", "http", path, milliseconds, Call(gateway), Work("render", 3.0), line, method=method
    )


def _api(name: str, milliseconds: float, *parts: Step | LogLine | Fault) -> Endpoint:
    """Return an endpoint of the gateway. `name` is `METHOD /path`."""
    method, path = name.split()
    return _endpoint("gateway", "http", path, milliseconds, *parts, method=method)


def _rpc(name: str, milliseconds: float, *parts: Step | LogLine | Measure | Fault) -> Endpoint:
    """Return a gRPC endpoint. `name` is `shop.SERVICE.v1.Interface/Method`."""
    return _endpoint(name.split(".")[1], "grpc", name, milliseconds, *parts)


def _sql(text: str, milliseconds: float, sigma: float = 0.5) -> DatabaseQuery:
    found = re.search(r"(?:FROM|INTO|UPDATE) (\w+)", text)
    table = found[1] if found else ""
    return DatabaseQuery("shop-db", text.split()[0], table, text, milliseconds, sigma)


def _redis(text: str, milliseconds: float) -> DatabaseQuery:
    operation, key = text.split()[:2]
    return DatabaseQuery("cache", operation, key.partition(":")[0], text, milliseconds)


ENDPOINTS: dict[str, Endpoint] = {
    # Pages of the frontend, where traces start.
    "frontend.home": _page("/", "gateway.home"),
    "frontend.product": _page("/product/{product_id}", "gateway.product"),
    "frontend.search": _page("/search", "gateway.search"),
    "frontend.cart": _page("/cart", "gateway.cart"),
    "frontend.cart_add": _page("/cart/items", "gateway.cart_add", "POST"),
    "frontend.checkout": _page("/checkout", "gateway.checkout", "POST", 8.0),
    "frontend.sign_in": _page("/sign-in", "gateway.sign_in", "POST"),
    # The gateway: HTTP in, gRPC out.
    "gateway.home": _api(
        "GET /api/home",
        2.0,
        Call("user.session"),
        Parallel((Call("catalog.list"), Call("recommendation.list", required=False))),
    ),
    "gateway.product": _api(
        "GET /api/products/{product_id}",
        2.0,
        Parallel(
            (
                Call("catalog.get", retries=1),
                Call("inventory.stock", required=False),
                Call("recommendation.list", required=False),
            )
        ),
        Call("currency.convert"),
        Fault("ProductNotFound", "no such product", 404, 5, chance=0.01),
    ),
    "gateway.search": _api("GET /api/search", 2.0, Call("search.query")),
    "gateway.cart": _api("GET /api/cart", 1.5, Call("user.session"), Call("cart.get")),
    "gateway.cart_add": _api("POST /api/cart/items", 1.5, Call("user.session"), Call("cart.add")),
    "gateway.checkout": _api("POST /api/checkout", 2.5, Call("user.session"), Call("checkout.place")),
    "gateway.sign_in": _api(
        "POST /api/sign-in",
        2.0,
        Call("user.authenticate"),
        LogLine(
            "WARN", "rate limit at {batch} of 300 requests for {client_address}", ("batch",), chance=0.05
        ),
    ),
    # Services behind the gateway.
    "catalog.list": _rpc(
        "shop.catalog.v1.Catalog/ListProducts",
        3.0,
        _sql("SELECT id, name, price FROM products WHERE category = $1 LIMIT $2", 6.0),
        LogLine("DEBUG", "listed category {category}, page {page}", ("category", "page"), chance=0.5),
        _POOL,
    ),
    "catalog.get": _rpc(
        "shop.catalog.v1.Catalog/GetProduct",
        1.5,
        Cached("product:{product_id}", 0.85, (_sql("SELECT * FROM products WHERE id = $1", 4.0),)),
        LogLine("TRACE", "product {product_id} looked up", ("product_id", "price"), chance=0.2),
        _CRASH,
    ),
    "search.query": _rpc(
        "shop.search.v1.Search/Query",
        4.0,
        DatabaseQuery("index", "search", "products-v7", '{"query":{"match":{"text":?}},"size":?}', 18.0, 0.7),
        Call("catalog.list"),
        LogLine("INFO", "search for '{term}' found {hits} products", ("term", "hits", "page"), chance=0.7),
        LogLine("WARN", "slow query on index products-v7: '{term}'", ("term", "hits"), chance=0.03),
    ),
    "recommendation.list": _rpc(
        "shop.recommendation.v1.Recommendations/List",
        2.0,
        Cached("rec:{user_id}", 0.7, (Work("score candidates", 22.0, 0.6),)),
        LogLine("DEBUG", "model v31 gave {items} items to {user_id}", ("items", "skus"), chance=0.4),
        Fault("ModelUnavailable", "no model replica is ready", 503, 14, chance=0.01),
    ),
    "inventory.stock": _rpc(
        "shop.inventory.v1.Inventory/GetStock",
        1.5,
        _sql("SELECT units FROM stock WHERE sku = $1", 2.5),
        LogLine("WARN", "stock of {product_id} is low: {stock}", ("product_id", "stock"), chance=0.04),
        Measure("shop.inventory.stock", "stock", ("category",)),
    ),
    "inventory.reserve": _rpc(
        "shop.inventory.v1.Inventory/Reserve",
        2.0,
        _sql("UPDATE stock SET units = units - $2 WHERE sku = $1", 5.0, 0.6),
        LogLine("INFO", "reserved {quantity} x {product_id}", ("product_id", "quantity", "order_id")),
        Fault("OutOfStock", "not enough units left", 409, 9, chance=0.02),
    ),
    "currency.convert": _rpc(
        "shop.currency.v1.Currency/Convert",
        0.6,
        LogLine("DEBUG", "EUR to {currency} at {rate}", ("currency", "rate"), chance=0.2),
    ),
    "user.session": _rpc(
        "shop.user.v1.Users/GetSession",
        0.8,
        Cached("session:{session_id}", 0.95, (_sql("SELECT * FROM sessions WHERE id = $1", 2.0),)),
    ),
    "user.authenticate": _rpc(
        "shop.user.v1.Users/Authenticate",
        2.0,
        _sql("SELECT id, hash FROM users WHERE name = $1", 2.5),
        Work("argon2id verify", 55.0, 0.15),
        _redis("SET session:? ? EX ?", 0.5),
        LogLine("INFO", "{user_name} signed in", ("user_id", "new_customer"), event="shop.user.signed_in"),
        Measure("shop.sign_ins", 1, ("country",)),
        Fault("InvalidCredentials", "name or password is wrong", 401, 16, chance=0.08),
    ),
    "cart.get": _rpc(
        "shop.cart.v1.Cart/GetCart",
        1.0,
        _redis("HGETALL cart:?", 0.7),
        Call("currency.convert", required=False),
    ),
    "cart.add": _rpc(
        "shop.cart.v1.Cart/AddItem",
        1.2,
        Call("catalog.get"),
        _redis("HSET cart:? ? ?", 0.6),
        LogLine(
            "INFO",
            "{quantity} x {product} added to the cart of {user_id}",
            ("product_id", "quantity", "price", "gift"),
            event="shop.cart.item_added",
        ),
        Measure("shop.carts.items", "quantity", ("category",)),
    ),
    "cart.empty": _rpc(
        "shop.cart.v1.Cart/EmptyCart",
        0.8,
        _redis("DEL cart:?", 0.4),
        Measure("shop.carts.items", "-quantity", ("category",)),
    ),
    "checkout.place": _rpc(
        "shop.checkout.v1.Checkout/PlaceOrder",
        5.0,
        Call("cart.get"),
        Parallel((Call("inventory.reserve"), Call("shipping.quote"), Call("currency.convert"))),
        Call("payment.charge"),
        _sql("INSERT INTO orders (id, user_id, total) VALUES ($1, $2, $3)", 6.0),
        Publish("orders", ("fulfilment.orders", "email.orders")),
        Call("cart.empty", required=False),
        LogLine(
            "INFO",
            "order {order_id} placed",
            ("order_id", "user_id", "items", "skus", "total", "currency", "address", "gift"),
            event="shop.order.placed",
            structured=True,
        ),
        Measure("shop.orders", 1, ("currency", "country")),
        Measure("shop.revenue", "total", ("currency",)),
        Measure("shop.order.value", "total", ("currency", "order_id", "user_id")),
        _CRASH,
    ),
    "payment.charge": _rpc(
        "shop.payment.v1.Payments/Charge",
        2.0,
        Work("fraud score", 9.0),
        External("api.paywell.example", "POST", "/v1/charges", 140.0, 0.45),
        _sql("INSERT INTO payments (order_id, amount) VALUES ($1, $2)", 5.0),
        LogLine("INFO", "charged {total} {currency} for {order_id}", ("order_id", "total", "currency")),
        LogLine("WARN", "fraud score {fraud_score} for {user_id}", ("fraud_score", "user_id"), chance=0.06),
        Measure("shop.payment.fraud_score", "fraud_score", ("country",)),
        Fault("CardDeclined", "the issuer declined the charge", 402, 9, chance=0.03),
    ),
    "payment.settle": _rpc(
        "shop.payment.v1.Payments/Settle",
        12.0,
        _sql("SELECT * FROM payments WHERE settled IS NULL LIMIT 500", 30.0),
        External("api.paywell.example", "POST", "/v1/settlements", 420.0, 0.4),
        _sql("UPDATE payments SET settled = now() WHERE id = ANY($1)", 24.0),
        LogLine("INFO", "settled {batch} payments", ("batch",)),
    ),
    "shipping.quote": _rpc(
        "shop.shipping.v1.Shipping/Quote",
        2.5,
        External("rates.parcelhub.example", "GET", "/v2/rates", 45.0),
        LogLine("DEBUG", "quote from {carrier}", ("carrier", "address"), chance=0.6),
    ),
    "shipping.label": _rpc(
        "shop.shipping.v1.Shipping/CreateLabel",
        3.0,
        External("rates.parcelhub.example", "POST", "/v2/labels", 80.0),
        LogLine("INFO", "label for {order_id} at {carrier}", ("order_id", "carrier", "address")),
    ),
    # Message consumers and cron jobs.
    "fulfilment.orders": _endpoint(
        "fulfilment",
        "consumer",
        "orders",
        4.0,
        Call("shipping.label"),
        _sql("UPDATE orders SET state = $2 WHERE id = $1", 4.0),
        Publish("shipments", ("email.shipments",)),
        LogLine("INFO", "order {order_id} handed to {carrier}", ("order_id", "carrier"), structured=True),
        LogLine("WARN", "partition lag is {batch} messages", ("batch",), chance=0.1),
    ),
    "email.orders": _endpoint(
        "email",
        "consumer",
        "orders",
        3.0,
        Work("render template", 6.0),
        External("smtp.mailbird.example", "POST", "/v3/send", 60.0),
        LogLine("INFO", "confirmation of {order_id} sent to {user_id}", ("order_id", "user_id")),
    ),
    "email.shipments": _endpoint(
        "email",
        "consumer",
        "shipments",
        3.0,
        External("smtp.mailbird.example", "POST", "/v3/send", 60.0),
        Fault("SMTPServerDisconnected", "connection unexpectedly closed", 502, 14, chance=0.02),
    ),
    "scheduler.settle": _endpoint(
        "scheduler",
        "cron",
        "settle-payments",
        5.0,
        Call("payment.settle"),
        LogLine("INFO", "job settle-payments done", ("batch",), event="cron.job.finished"),
    ),
    "scheduler.restock": _endpoint(
        "scheduler",
        "cron",
        "restock",
        8.0,
        Call("inventory.stock"),
        Call("inventory.reserve", required=False),
        LogLine("INFO", "job restock looked at {batch} products", ("batch", "stock")),
    ),
}

JOURNEYS: tuple[Journey, ...] = (
    Journey("browse", "frontend.home", 26),
    Journey("look at a product", "frontend.product", 30),
    Journey("search", "frontend.search", 16),
    Journey("add to cart", "frontend.cart_add", 9),
    Journey("view cart", "frontend.cart", 6),
    Journey("check out", "frontend.checkout", 6),
    Journey("sign in", "frontend.sign_in", 5),
    Journey("settle payments", "scheduler.settle", 1),
    Journey("restock", "scheduler.restock", 1),
)
