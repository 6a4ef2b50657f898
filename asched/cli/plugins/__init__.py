"""``asched plugins``: what is installed, whether it keeps the contract, and a beginning for more."""
