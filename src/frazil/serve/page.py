"""HTML pages: a start page, and the documentation of the API. They load nothing from other servers."""

from __future__ import annotations

import base64
import hashlib
import json
import shlex
from html import escape
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response

from frazil import __version__
from frazil.config import Config
from frazil.serve.state import ConfigDep

router = APIRouter(include_in_schema=False)

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --dim: #777; --mark: #0a7ea4; --soft: #8881; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 0 auto; padding: 1.5rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; }
h3 { margin: 0; font-size: 1rem; font-weight: 600; }
a { color: var(--mark); } .dim { color: var(--dim); }
section { border: 1px solid var(--line); border-radius: 8px; padding: 1rem; margin: 1rem 0; }
code, pre { font: 0.85rem/1.45 ui-monospace, monospace; }
pre { background: var(--soft); border-radius: 6px; padding: 0.7rem; overflow-x: auto; margin: 0.6rem 0; }
.method { display: inline-block; min-width: 4rem; color: var(--mark); font-weight: 700; }
table { border-collapse: collapse; width: 100%; margin: 0.6rem 0; font-size: 0.9rem; }
th, td { text-align: left; vertical-align: top; padding: 0.3rem 0.6rem 0.3rem 0; }
td { border-top: 1px solid var(--line); }
summary { cursor: pointer; } p { margin: 0.4rem 0; }
"""
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_POLICY = (
    f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)


@router.get("/api/openapi.json")
async def openapi(request: Request) -> Response:
    return Response(orjson.dumps(request.app.openapi()), media_type="application/json")


@router.get("/")
@router.get("/api")
async def start(config: ConfigDep) -> Response:
    query = {"sql": "SELECT service_name, count(*) FROM logs GROUP BY ALL"}
    curl = _curl(config.serve.url, "post", "/api/v1/sql", query, config)
    links = {
        "/api/docs": "All endpoints",
        "/api/openapi.json": "OpenAPI",
        "/healthz": "Health",
        "/metrics": "Metrics",
    }
    anchors = " · ".join(f'<a href="{path}">{name}</a>' for path, name in links.items())
    body = (
        f"<h1>frazil {escape(__version__)}</h1>"
        "<p>SQL over OpenTelemetry data, including rows that have not landed in the tables yet.</p>"
        f"<pre>{escape(curl)}</pre>"
        f"<p>{anchors}</p>"
    )
    return _page("frazil", body)


@router.get("/api/docs")
async def docs(request: Request, config: ConfigDep) -> Response:
    document = request.app.openapi()
    groups: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            tag = (operation.get("tags") or ["Other"])[0]
            groups.setdefault(tag, []).append(_operation(config, path, method, operation))
    keys = (
        "Send an API key with the role <code>read</code> as <code>Authorization: Bearer fz_…</code> or "
        "<code>X-Api-Key</code>."
        if config.auth.keys
        else "No API keys are configured: every user of this machine has access."
    )
    parts = [f"<h1>frazil API</h1><p>{escape(document['info']['description'])} {keys}</p>"]
    parts.append('<p><a href="/api/openapi.json">openapi.json</a></p>')
    for tag, operations in groups.items():
        parts.append(f"<h2>{escape(tag)}</h2>{''.join(operations)}")
    return _page("frazil API", "".join(parts))


def _page(title: str, body: str) -> Response:
    text = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>{body}</body></html>"
    )
    return Response(text, headers={"content-security-policy": _POLICY}, media_type="text/html")


def _operation(config: Config, path: str, method: str, operation: dict[str, Any]) -> str:
    content = operation.get("requestBody", {}).get("content", {})
    body = content.get("application/json", {}).get("example")
    curl = _curl(config.serve.url, method, _example_path(path, operation), body, config)
    return f"""<section>
<h3><span class="method">{method.upper()}</span> <code>{escape(path)}</code></h3>
<p>{_prose(operation.get("description") or operation.get("summary", ""))}</p>
{_members(content)}{_parameters(operation.get("parameters", []))}
<pre>{escape(curl)}</pre>
{_responses(operation.get("responses", {}))}
</section>"""


def _example_path(path: str, operation: dict[str, Any]) -> str:
    """Return the path with example values for its parameters."""
    for parameter in operation.get("parameters", []):
        if parameter["in"] == "path":
            path = path.replace("{%s}" % parameter["name"], _example(parameter) or "ID")  # noqa: UP031
    query = [
        f"{parameter['name']}={_example(parameter)}"
        for parameter in operation.get("parameters", [])
        if parameter["in"] == "query" and parameter["name"] in ("from", "service", "status")
    ]
    return path + ("?" + "&".join(query) if query else "")


def _example(parameter: dict[str, Any]) -> str:
    examples = parameter.get("schema", {}).get("examples") or parameter.get("examples") or [""]
    return str(examples[0] if isinstance(examples, list) else "")


def _curl(url: str, method: str, path: str, body: Any, config: Config) -> str:
    option = "" if method in ("get", "post") else f"-X {method.upper()} "
    command = f"curl -s {option}{shlex.quote(url + path)}"
    if config.auth.keys:
        command += " \\\n  -H 'Authorization: Bearer fz_…'"
    if body is not None:
        sent = json.dumps(body, ensure_ascii=False)
        command += f" \\\n  -H 'Content-Type: application/json' -d {shlex.quote(sent)}"
    return command


def _members(content: dict[str, Any]) -> str:
    members = content.get("application/json", {}).get("schema", {}).get("properties", {})
    rows = [(name, _type(schema), schema.get("description", "")) for name, schema in members.items()]
    return _table("Member", rows)


def _type(schema: dict[str, Any]) -> str:
    choices = [choice.get("type", "") for choice in schema.get("anyOf") or schema.get("oneOf") or [schema]]
    return " or ".join(dict.fromkeys(choice for choice in choices if choice not in ("", "null")))


def _parameters(parameters: list[dict[str, Any]]) -> str:
    rows = []
    for parameter in parameters:
        schema = parameter.get("schema", {})
        default = schema.get("default")
        text = parameter.get("description", "")
        if default is not None:
            text += f" Default: `{default}`."
        rows.append((parameter["name"], parameter["in"], text))
    return _table("Parameter", rows)


def _table(head: str, rows: list[tuple[str, str, str]]) -> str:
    if not rows:
        return ""
    lines = "".join(
        f'<tr><td><code>{escape(name)}</code></td><td class="dim">{escape(kind)}</td>'
        f"<td>{_prose(text)}</td></tr>"
        for name, kind, text in rows
    )
    return f"<table><tr><th>{head}</th><th></th><th></th></tr>{lines}</table>"


def _responses(responses: dict[str, Any]) -> str:
    lines = []
    for status, response in responses.items():
        example = response.get("content", {}).get("application/json", {}).get("example")
        shown = ""
        if example is not None:
            shown = f"<pre>{escape(json.dumps(example, indent=2, ensure_ascii=False))}</pre>"
        lines.append(f"<p><code>{escape(str(status))}</code> {_prose(response['description'])}</p>{shown}")
    return f"<details><summary>Responses</summary>{''.join(lines)}</details>"


def _prose(text: str) -> str:
    """Escape text, and mark up text in backticks as code."""
    parts = escape(text).split("`")
    return "".join(f"<code>{part}</code>" if number % 2 else part for number, part in enumerate(parts))
