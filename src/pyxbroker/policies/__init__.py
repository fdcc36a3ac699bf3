"""Policies of namespaces and topics: records, resolution and change notifications."""
