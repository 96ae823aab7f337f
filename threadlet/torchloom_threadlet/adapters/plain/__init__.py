"""Any other loop: a worker that cannot agree with others on a step."""
