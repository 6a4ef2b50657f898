"""Compares the live state with the cluster and with the journal while the daemon runs.

A watch that loses an event without an error leaves a state that no later event corrects. The
comparer lists each resource now and then, a page at a time, and requests a new list of a resource
that has another state. It also folds the journal a second time and compares the result.
"""
