"""The version of the package, and of the files that it writes."""

__version__ = "0.1.0"
# Of `result.json`, `compare.json` and `diagnosis.json`.
SCHEMA_VERSION = 2
