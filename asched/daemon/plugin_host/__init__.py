"""Runs plugins without risk to the daemon; see ``docs/how-to/plugins/safety.md``.

Plugins that are impure or slow are evaluated outside decisions, in the daemon or in a worker
process: ``external_plugins`` picks a client, ``clients`` and ``worker`` exchange the messages of
``evaluation``, which calls the plugin. ``binding_calls`` limits plugins of the binding cycle.
``guarded_loop`` protects the event loop.
"""
