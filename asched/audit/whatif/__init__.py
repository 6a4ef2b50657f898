"""Compares a recorded history with simulations of other configurations."""
