"""Plugins that are not asked as part of a decision, because they are not pure or may take long.

A decision that needs what such a plugin says is a question (``ExtenderAsked``); here it is put, and the
answer goes the way of an HTTP extender's. See ``docs/plugins/safety.md``.
"""
