"""How fast the browser interface is on a large journal and on one that grows."""
