"""The store of a node's memory: a process that outlives the trainers, and its client."""
