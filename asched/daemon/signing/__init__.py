"""Signs the journal that a daemon writes, and publishes the signed heads."""
