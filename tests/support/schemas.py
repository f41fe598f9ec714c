"""JSON held against a schema. `jsonschema` is imported by the tests that need it: others begin 0.1 s sooner."""

from __future__ import annotations

import json
from functools import cache
from typing import Any


def validate(document: Any, schema: dict[str, Any]) -> None:
    """Raise jsonschema.ValidationError where a document does not follow a schema, SchemaError where that is none."""
    _validator(json.dumps(schema)).validate(document)


@cache
def _validator(schema: str) -> Any:
    from jsonschema.validators import validator_for

    read = json.loads(schema)
    validator = validator_for(read)
    validator.check_schema(read)
    return validator(read)
