"""What standby tasks share: a budget, the pace of what they tell, and a state that is put back."""
