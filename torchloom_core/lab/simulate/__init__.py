"""The fleet model: what a fault, a checkpoint or a migration costs a run, second by second."""
