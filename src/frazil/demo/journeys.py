"""What users do and what the services do for them, as data: the endpoints and the journeys through them."""

from __future__ import annotations

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
    Work,
)

_SHOPPER = ("user_id", "session_id")
_CRASH = Fault("RuntimeError", "unexpected state: response already committed", 500, 13, chance=0.002)
_POOL = Fault("psycopg_pool.PoolTimeout", "couldn't get a connection after 2.00 sec", 503, 14, chance=0.003)

ERRORS_SERVICE = "catalog"
"""The service that fails in the incident `errors`: a bad release that trips over products without a tier."""
ERRORS_FAULT = Fault("KeyError", "'price_tier'", 500, 13, chance=0.6)
SLOW_STORE = "shop-db"
"""The store that is slow in the incident `slow`: lock waits; the slowest statements hit the time-out."""


def _page(name: str, gateway: str, method: str = "GET", milliseconds: float = 4.0) -> Endpoint:
    """A page of the frontend: renders what one endpoint of the gateway answers."""
    line = LogLine(
        "INFO", f"{method} {name} for {{user_id}}", (*_SHOPPER, "country", "new_customer"), chance=0.3
    )
    return Endpoint(
        "frontend", "http", name, milliseconds, (Call(gateway), Work("render", 3.0)), method, (line,)
    )


ENDPOINTS: dict[str, Endpoint] = {
    # The pages: what a trace begins with.
    "frontend.home": _page("/", "gateway.home"),
    "frontend.product": _page("/product/{product_id}", "gateway.product"),
    "frontend.search": _page("/search", "gateway.search"),
    "frontend.cart": _page("/cart", "gateway.cart"),
    "frontend.cart_add": _page("/cart/items", "gateway.cart_add", "POST"),
    "frontend.checkout": _page("/checkout", "gateway.checkout", "POST", 8.0),
    "frontend.sign_in": _page("/sign-in", "gateway.sign_in", "POST"),
    # The gateway: HTTP outside, gRPC inside.
    "gateway.home": Endpoint(
        "gateway",
        "http",
        "/api/home",
        2.0,
        (
            Call("user.session"),
            Parallel((Call("catalog.list"), Call("recommendation.list", required=False))),
        ),
    ),
    "gateway.product": Endpoint(
        "gateway",
        "http",
        "/api/products/{product_id}",
        2.0,
        (
            Parallel(
                (
                    Call("catalog.get", retries=1),
                    Call("inventory.stock", required=False),
                    Call("recommendation.list", required=False),
                )
            ),
            Call("currency.convert"),
        ),
        faults=(Fault("ProductNotFound", "no such product", 404, 5, chance=0.01),),
    ),
    "gateway.search": Endpoint("gateway", "http", "/api/search", 2.0, (Call("search.query"),)),
    "gateway.cart": Endpoint("gateway", "http", "/api/cart", 1.5, (Call("user.session"), Call("cart.get"))),
    "gateway.cart_add": Endpoint(
        "gateway", "http", "/api/cart/items", 1.5, (Call("user.session"), Call("cart.add")), "POST"
    ),
    "gateway.checkout": Endpoint(
        "gateway", "http", "/api/checkout", 2.5, (Call("user.session"), Call("checkout.place")), "POST"
    ),
    "gateway.sign_in": Endpoint(
        "gateway",
        "http",
        "/api/sign-in",
        2.0,
        (Call("user.authenticate"),),
        "POST",
        (
            LogLine(
                "WARN", "rate limit at {batch} of 300 requests for {client_address}", ("batch",), chance=0.05
            ),
        ),
    ),
    # The services behind it.
    "catalog.list": Endpoint(
        "catalog",
        "grpc",
        "shop.catalog.v1.Catalog/ListProducts",
        3.0,
        (
            DatabaseQuery(
                "shop-db",
                "SELECT",
                "products",
                "SELECT id, name, price FROM products WHERE category = $1 LIMIT $2",
                6.0,
            ),
        ),
        lines=(
            LogLine("DEBUG", "listed category {category}, page {page}", ("category", "page"), chance=0.5),
        ),
        faults=(_POOL,),
    ),
    "catalog.get": Endpoint(
        "catalog",
        "grpc",
        "shop.catalog.v1.Catalog/GetProduct",
        1.5,
        (
            Cached(
                "product:{product_id}",
                0.85,
                (
                    DatabaseQuery(
                        "shop-db", "SELECT", "products", "SELECT * FROM products WHERE id = $1", 4.0
                    ),
                ),
            ),
        ),
        lines=(LogLine("TRACE", "product {product_id} looked up", ("product_id", "price"), chance=0.2),),
        faults=(_CRASH,),
    ),
    "search.query": Endpoint(
        "search",
        "grpc",
        "shop.search.v1.Search/Query",
        4.0,
        (
            DatabaseQuery(
                "index", "search", "products-v7", '{"query":{"match":{"text":?}},"size":?}', 18.0, 0.7
            ),
            Call("catalog.list"),
        ),
        lines=(
            LogLine(
                "INFO", "search for '{term}' found {hits} products", ("term", "hits", "page"), chance=0.7
            ),
            LogLine("WARN", "slow query on index products-v7: '{term}'", ("term", "hits"), chance=0.03),
        ),
    ),
    "recommendation.list": Endpoint(
        "recommendation",
        "grpc",
        "shop.recommendation.v1.Recommendations/List",
        2.0,
        (Cached("rec:{user_id}", 0.7, (Work("score candidates", 22.0, 0.6),)),),
        lines=(LogLine("DEBUG", "model v31 gave {items} items to {user_id}", ("items", "skus"), chance=0.4),),
        faults=(Fault("ModelUnavailable", "no model replica is ready", 503, 14, chance=0.01),),
    ),
    "inventory.stock": Endpoint(
        "inventory",
        "grpc",
        "shop.inventory.v1.Inventory/GetStock",
        1.5,
        (DatabaseQuery("shop-db", "SELECT", "stock", "SELECT units FROM stock WHERE sku = $1", 2.5),),
        measures=(Measure("shop.inventory.stock", "stock", ("category",)),),
        lines=(
            LogLine("WARN", "stock of {product_id} is low: {stock}", ("product_id", "stock"), chance=0.04),
        ),
    ),
    "inventory.reserve": Endpoint(
        "inventory",
        "grpc",
        "shop.inventory.v1.Inventory/Reserve",
        2.0,
        (
            DatabaseQuery(
                "shop-db", "UPDATE", "stock", "UPDATE stock SET units = units - $2 WHERE sku = $1", 5.0, 0.6
            ),
        ),
        lines=(
            LogLine("INFO", "reserved {quantity} x {product_id}", ("product_id", "quantity", "order_id")),
        ),
        faults=(Fault("OutOfStock", "not enough units left", 409, 9, chance=0.02),),
    ),
    "currency.convert": Endpoint(
        "currency",
        "grpc",
        "shop.currency.v1.Currency/Convert",
        0.6,
        lines=(LogLine("DEBUG", "EUR to {currency} at {rate}", ("currency", "rate"), chance=0.2),),
    ),
    "user.session": Endpoint(
        "user",
        "grpc",
        "shop.user.v1.Users/GetSession",
        0.8,
        (
            Cached(
                "session:{session_id}",
                0.95,
                (
                    DatabaseQuery(
                        "shop-db", "SELECT", "sessions", "SELECT * FROM sessions WHERE id = $1", 2.0
                    ),
                ),
            ),
        ),
    ),
    "user.authenticate": Endpoint(
        "user",
        "grpc",
        "shop.user.v1.Users/Authenticate",
        2.0,
        (
            DatabaseQuery("shop-db", "SELECT", "users", "SELECT id, hash FROM users WHERE name = $1", 2.5),
            Work("argon2id verify", 55.0, 0.15),
            DatabaseQuery("cache", "SET", "session", "SET session:? ? EX ?", 0.5),
        ),
        lines=(
            LogLine(
                "INFO", "{user_name} signed in", ("user_id", "new_customer"), event="shop.user.signed_in"
            ),
        ),
        measures=(Measure("shop.sign_ins", 1, ("country",)),),
        faults=(Fault("InvalidCredentials", "name or password is wrong", 401, 16, chance=0.08),),
    ),
    "cart.get": Endpoint(
        "cart",
        "grpc",
        "shop.cart.v1.Cart/GetCart",
        1.0,
        (
            DatabaseQuery("cache", "HGETALL", "cart", "HGETALL cart:?", 0.7),
            Call("currency.convert", required=False),
        ),
    ),
    "cart.add": Endpoint(
        "cart",
        "grpc",
        "shop.cart.v1.Cart/AddItem",
        1.2,
        (Call("catalog.get"), DatabaseQuery("cache", "HSET", "cart", "HSET cart:? ? ?", 0.6)),
        lines=(
            LogLine(
                "INFO",
                "{quantity} x {product} added to the cart of {user_id}",
                ("product_id", "quantity", "price", "gift"),
                event="shop.cart.item_added",
            ),
        ),
        measures=(Measure("shop.carts.items", "quantity", ("category",)),),
    ),
    "cart.empty": Endpoint(
        "cart",
        "grpc",
        "shop.cart.v1.Cart/EmptyCart",
        0.8,
        (DatabaseQuery("cache", "DEL", "cart", "DEL cart:?", 0.4),),
        measures=(Measure("shop.carts.items", "-quantity", ("category",)),),
    ),
    "checkout.place": Endpoint(
        "checkout",
        "grpc",
        "shop.checkout.v1.Checkout/PlaceOrder",
        5.0,
        (
            Call("cart.get"),
            Parallel((Call("inventory.reserve"), Call("shipping.quote"), Call("currency.convert"))),
            Call("payment.charge"),
            DatabaseQuery(
                "shop-db",
                "INSERT",
                "orders",
                "INSERT INTO orders (id, user_id, total) VALUES ($1, $2, $3)",
                6.0,
            ),
            Publish("orders", ("fulfilment.orders", "email.orders")),
            Call("cart.empty", required=False),
        ),
        lines=(
            LogLine(
                "INFO",
                "order {order_id} placed",
                ("order_id", "user_id", "items", "skus", "total", "currency", "address", "gift"),
                event="shop.order.placed",
                structured=True,
            ),
        ),
        measures=(
            Measure("shop.orders", 1, ("currency", "country")),
            Measure("shop.revenue", "total", ("currency",)),
            Measure("shop.order.value", "total", ("currency", "order_id", "user_id")),
        ),
        faults=(_CRASH,),
    ),
    "payment.charge": Endpoint(
        "payment",
        "grpc",
        "shop.payment.v1.Payments/Charge",
        2.0,
        (
            Work("fraud score", 9.0),
            External("api.paywell.example", "POST", "/v1/charges", 140.0, 0.45),
            DatabaseQuery(
                "shop-db",
                "INSERT",
                "payments",
                "INSERT INTO payments (order_id, amount) VALUES ($1, $2)",
                5.0,
            ),
        ),
        lines=(
            LogLine("INFO", "charged {total} {currency} for {order_id}", ("order_id", "total", "currency")),
            LogLine(
                "WARN", "fraud score {fraud_score} for {user_id}", ("fraud_score", "user_id"), chance=0.06
            ),
        ),
        measures=(Measure("shop.payment.fraud_score", "fraud_score", ("country",)),),
        faults=(Fault("CardDeclined", "the issuer declined the charge", 402, 9, chance=0.03),),
    ),
    "payment.settle": Endpoint(
        "payment",
        "grpc",
        "shop.payment.v1.Payments/Settle",
        12.0,
        (
            DatabaseQuery(
                "shop-db",
                "SELECT",
                "payments",
                "SELECT * FROM payments WHERE settled IS NULL LIMIT 500",
                30.0,
            ),
            External("api.paywell.example", "POST", "/v1/settlements", 420.0, 0.4),
            DatabaseQuery(
                "shop-db",
                "UPDATE",
                "payments",
                "UPDATE payments SET settled = now() WHERE id = ANY($1)",
                24.0,
            ),
        ),
        lines=(LogLine("INFO", "settled {batch} payments", ("batch",)),),
    ),
    "shipping.quote": Endpoint(
        "shipping",
        "grpc",
        "shop.shipping.v1.Shipping/Quote",
        2.5,
        (External("rates.parcelhub.example", "GET", "/v2/rates", 45.0),),
        lines=(LogLine("DEBUG", "quote from {carrier}", ("carrier", "address"), chance=0.6),),
    ),
    "shipping.label": Endpoint(
        "shipping",
        "grpc",
        "shop.shipping.v1.Shipping/CreateLabel",
        3.0,
        (External("rates.parcelhub.example", "POST", "/v2/labels", 80.0),),
        lines=(LogLine("INFO", "label for {order_id} at {carrier}", ("order_id", "carrier", "address")),),
    ),
    # Behind the queue, and on the clock.
    "fulfilment.orders": Endpoint(
        "fulfilment",
        "consumer",
        "orders",
        4.0,
        (
            Call("shipping.label"),
            DatabaseQuery("shop-db", "UPDATE", "orders", "UPDATE orders SET state = $2 WHERE id = $1", 4.0),
            Publish("shipments", ("email.shipments",)),
        ),
        lines=(
            LogLine("INFO", "order {order_id} handed to {carrier}", ("order_id", "carrier"), structured=True),
            LogLine("WARN", "partition lag is {batch} messages", ("batch",), chance=0.1),
        ),
    ),
    "email.orders": Endpoint(
        "email",
        "consumer",
        "orders",
        3.0,
        (Work("render template", 6.0), External("smtp.mailbird.example", "POST", "/v3/send", 60.0)),
        lines=(LogLine("INFO", "confirmation of {order_id} sent to {user_id}", ("order_id", "user_id")),),
    ),
    "email.shipments": Endpoint(
        "email",
        "consumer",
        "shipments",
        3.0,
        (External("smtp.mailbird.example", "POST", "/v3/send", 60.0),),
        faults=(Fault("SMTPServerDisconnected", "connection unexpectedly closed", 502, 14, chance=0.02),),
    ),
    "scheduler.settle": Endpoint(
        "scheduler",
        "cron",
        "settle-payments",
        5.0,
        (Call("payment.settle"),),
        lines=(LogLine("INFO", "job settle-payments done", ("batch",), event="cron.job.finished"),),
    ),
    "scheduler.restock": Endpoint(
        "scheduler",
        "cron",
        "restock",
        8.0,
        (Call("inventory.stock"), Call("inventory.reserve", required=False)),
        lines=(LogLine("INFO", "job restock looked at {batch} products", ("batch", "stock")),),
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
