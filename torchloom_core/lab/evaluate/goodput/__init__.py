"""What policies are worth: arms played on the fleet model, and what came of them."""
