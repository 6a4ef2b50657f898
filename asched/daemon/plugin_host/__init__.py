"""Runs plugins without risk to the daemon; see ``docs/plugins/safety.md``.

Plugins that are impure or slow are evaluated outside decisions, in the daemon or in a worker
process: ``external_plugins`` picks a client, ``clients`` and ``worker`` exchange ``messages``,
``evaluator`` calls the plugin. ``binding_calls`` and ``binding_client`` limit plugins of the
binding cycle. ``guarded_loop`` and ``watchdog`` protect the event loop.
"""
