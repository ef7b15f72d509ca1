"""The part of KubeRay's schema that ``launch/kuberay_rayjob.yaml`` needs, kept in ``tests/data/kuberay_rayjob.json``.

    git show v1.7.0:helm-chart/kuberay-operator/crds/ray.io_rayjobs.yaml >rayjobs.yaml     # in a clone of KubeRay
    python -m tests.helpers.kuberay rayjobs.yaml --from 'KubeRay v1.7.0'

validates the manifest against the whole definition, and writes the part; the whole has 1.4 MB.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from tests.helpers import REPOSITORY

MANIFEST = REPOSITORY / "launch/kuberay_rayjob.yaml"
PART = REPOSITORY / "tests/data/kuberay_rayjob.json"
_NOTES = {"description", "default", "x-kubernetes-list-type", "x-kubernetes-list-map-keys", "x-kubernetes-map-type"}
"""Keywords that validate nothing, or nothing that jsonschema knows."""


def problems(manifest: Any, schema: dict[str, Any]) -> list[str]:
    """Returns what a schema has against a manifest, each with its place."""
    errors = jsonschema.Draft202012Validator(schema).iter_errors(manifest)
    return [f"{'.'.join(map(str, error.path))}: {error.message}" for error in errors]


def strict(schema: Any) -> Any:
    """Returns a schema of Kubernetes as one of JSON that refuses unknown fields, which Kubernetes drops silently."""
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    rules = {key: strict(value) for key, value in schema.items()}
    if rules.pop("x-kubernetes-int-or-string", False):
        rules["type"] = ["integer", "string"]
        rules.pop("anyOf", None)
    if "properties" in rules and not rules.get("x-kubernetes-preserve-unknown-fields"):
        rules.setdefault("additionalProperties", False)
    return rules


def needed(schema: Any, manifests: list[Any]) -> Any:
    """Returns the part of a strict schema that applies to these values of one place; all other fields are refused."""
    if not isinstance(schema, dict):
        return schema
    part = {key: value for key, value in schema.items() if key not in _NOTES}
    fields = [value for value in manifests if isinstance(value, dict)]
    if "properties" in part:
        part["properties"] = {
            name: needed(rules, [value[name] for value in fields if name in value])
            for name, rules in part["properties"].items() if any(name in value for value in fields)
        }  # fmt: skip
    if isinstance(part.get("additionalProperties"), dict):
        part["additionalProperties"] = needed(part["additionalProperties"], [one for v in fields for one in v.values()])
    if "items" in part:
        part["items"] = needed(part["items"], [one for v in manifests if isinstance(v, list) for one in v])
    return part


def whole_schema(definition: Path) -> dict[str, Any]:
    """Returns the strict schema of ``ray.io/v1`` in a file that defines RayJob for Kubernetes."""
    versions = yaml.safe_load(definition.read_text())["spec"]["versions"]
    (schema,) = (version["schema"]["openAPIV3Schema"] for version in versions if version["name"] == "v1")
    rules: dict[str, Any] = strict(schema)
    rules["properties"]["metadata"] = {"type": "object"}  # Kubernetes checks it for every kind of object alike
    return rules


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("definition", type=Path, help="ray.io_rayjobs.yaml of KubeRay")
    parser.add_argument("--from", dest="source", required=True, help="release that it is of")
    arguments = parser.parse_args()
    manifest, schema = yaml.safe_load(MANIFEST.read_text()), whole_schema(arguments.definition)
    if against := problems(manifest, schema):
        print(*against, sep="\n")
        return 1
    about = f"Part of ray.io_rayjobs.yaml of {arguments.source}, Apache License 2.0; made by tests/helpers/kuberay.py"
    PART.write_text(json.dumps({"$comment": about, **needed(schema, [manifest])}, indent=1) + "\n")
    print(f"{MANIFEST.name} is valid; wrote {PART.relative_to(REPOSITORY)}, {PART.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
