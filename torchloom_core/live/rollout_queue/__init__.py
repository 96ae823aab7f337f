"""The queue between rollout workers and trainers, as a process of its own."""
