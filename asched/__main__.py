"""``python -m asched`` is the ``asched`` command."""

from asched.cli.main import main

main()
