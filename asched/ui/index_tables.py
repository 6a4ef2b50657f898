"""The tables of the file that keeps the index, and their statements."""

from __future__ import annotations

from typing import Final

VERSION: Final = 7
"""Incremented whenever the tables or the contents of the index change."""
TABLES: Final = """
CREATE TABLE IF NOT EXISTS mark (id INTEGER PRIMARY KEY CHECK (id = 1), form BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS logs (id INTEGER PRIMARY KEY CHECK (id = 1), form BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS verified (id INTEGER PRIMARY KEY CHECK (id = 1), form BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS pod (key TEXT PRIMARY KEY, form BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS pod_group
  (kind TEXT, key TEXT, form BLOB NOT NULL, PRIMARY KEY (kind, key)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS bucket (start_s INTEGER PRIMARY KEY, form BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS chunk (base_seq INTEGER PRIMARY KEY, form BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS node_name (number INTEGER PRIMARY KEY, name TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS node_facts
  (seq INTEGER, name TEXT, form BLOB NOT NULL, PRIMARY KEY (seq, name)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS node_devices
  (seq INTEGER, name TEXT, form BLOB NOT NULL, PRIMARY KEY (seq, name)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS placement
  (node TEXT, begin_seq INTEGER, key TEXT, end_seq INTEGER NOT NULL, bound_seq INTEGER NOT NULL,
   form INTEGER NOT NULL, PRIMARY KEY (node, begin_seq, key)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS placed_form (number INTEGER PRIMARY KEY, form BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS plugin_facts
  (kind TEXT, seq INTEGER, form BLOB NOT NULL, PRIMARY KEY (kind, seq)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS timeline
  (key TEXT, seq INTEGER, form BLOB NOT NULL, PRIMARY KEY (key, seq)) WITHOUT ROWID;
"""
_WIDTHS: Final = {
    "mark": 2,
    "logs": 2,
    "verified": 2,
    "pod": 2,
    "pod_group": 3,
    "bucket": 2,
    "chunk": 2,
    "node_name": 2,
    "node_facts": 3,
    "node_devices": 3,
    "placement": 6,
    "placed_form": 2,
    "plugin_facts": 3,
    "timeline": 3,
}
_NOT_COUNTED: Final = ("mark", "verified", "placement", "timeline")
"""Tables that are not written with the index, or too large to be counted at each start."""
DELETE: Final = {table: f"DELETE FROM {table}" for table in _WIDTHS}
COUNT: Final = {
    table: f"SELECT count(*) FROM {table}" for table in _WIDTHS if table not in _NOT_COUNTED
}
PUT: Final = {
    table: f"INSERT OR REPLACE INTO {table} VALUES ({', '.join('?' * width)})"
    for table, width in _WIDTHS.items()
}
