"""The page at ``/docs``: what OpenAPI says, as plain HTML made here. It needs no script and nothing from elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
code, pre { font: 14px/1.45 ui-monospace, monospace; }
pre { overflow-x: auto; padding: .75rem; border: 1px solid #8885; border-radius: 6px; }
summary { cursor: pointer; padding: .4rem 0; }
details { border-top: 1px solid #8884; }
details > :not(summary) { margin-left: 1rem; }
b.verb { display: inline-block; min-width: 4.2rem; }
table { border-collapse: collapse; } td, th { text-align: left; vertical-align: top; padding: .15rem 1rem .15rem 0; }
"""
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'"
}


def page(document: Mapping[str, Any]) -> str:
    """The page for an OpenAPI document."""
    info = document["info"]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(info['title'])}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{escape(info['title'])} <small>{escape(info['version'])}</small></h1>"
        f"<p>{escape(info.get('description', ''))}</p>"
        '<p>For tools: <a href="openapi.json">openapi.json</a>.</p>'
        f"{''.join(_tags(document))}"
        f"<h2>Shapes</h2>{''.join(_shapes(document))}</body></html>"
    )


def _tags(document: Mapping[str, Any]) -> Iterator[str]:
    tags: dict[str, list[str]] = {}
    for path, operations in document["paths"].items():
        for verb, operation in operations.items():
            tag = operation.get("tags", ["other"])[0]
            tags.setdefault(tag, []).append(_operation(path, verb, operation))
    for tag, shown in tags.items():
        yield f"<h2>{escape(tag.capitalize())}</h2>{''.join(shown)}"


def _operation(path: str, verb: str, operation: Mapping[str, Any]) -> str:
    said = operation.get("description", "")
    first, _, rest = said.partition("\n")
    title = f'<b class="verb"><code>{verb.upper()}</code></b> <code>{escape(path)}</code> {escape(first)}'
    parts = [f"<summary>{title}</summary>"]
    if rest.strip():
        parts.append(f"<p>{escape(rest.strip())}</p>")
    parts += [*_parameters(operation), *_body(operation), *_responses(operation)]
    return f"<details>{''.join(parts)}</details>"


def _parameters(operation: Mapping[str, Any]) -> Iterator[str]:
    found = operation.get("parameters", [])
    if found:
        rows = (
            f"<tr><td><code>{escape(p['name'])}</code></td><td>{escape(p['in'])}</td>"
            f"<td>{escape(p.get('description', ''))}</td></tr>"
            for p in found
        )
        yield f"<p>Parameters</p><table>{''.join(rows)}</table>"


def _body(operation: Mapping[str, Any]) -> Iterator[str]:
    if "requestBody" in operation:
        yield f"<p>Body: {_link(operation['requestBody'])}</p>"


def _responses(operation: Mapping[str, Any]) -> Iterator[str]:
    rows = (
        f"<tr><td><code>{escape(status)}</code></td><td>{escape(r.get('description', ''))}</td><td>{_link(r)}</td></tr>"
        for status, r in sorted(operation["responses"].items())
    )
    yield f"<p>Answers</p><table>{''.join(rows)}</table>"


def _link(holder: Mapping[str, Any]) -> str:
    for media_type, content in holder.get("content", {}).items():
        name = content.get("schema", {}).get("$ref", "").rpartition("/")[2]
        if name:
            return f'<a href="#{escape(name)}">{escape(name)}</a>'
        return f"<code>{escape(media_type)}</code>"
    return ""


def _shapes(document: Mapping[str, Any]) -> Iterator[str]:
    for name, schema in sorted(document["components"]["schemas"].items()):
        text = json.dumps(schema, indent=2, ensure_ascii=False)
        yield (
            f'<details id="{escape(name)}" open><summary><code>{escape(name)}</code> '
            f"{escape(schema.get('description', ''))}</summary><pre>{escape(text)}</pre></details>"
        )
