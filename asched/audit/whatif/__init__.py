"""What another configuration would have made of a recorded history."""
