"""JSON held against a schema. `jsonschema` is imported by the tests that need it: others begin 0.1 s sooner."""

from __future__ import annotations

from typing import Any


def validate(document: Any, schema: dict[str, Any]) -> None:
    """Raise jsonschema.ValidationError where a document does not follow a schema, SchemaError where that is none."""
    import jsonschema

    jsonschema.validate(document, schema)
