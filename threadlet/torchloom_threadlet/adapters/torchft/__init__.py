"""torchft: replica groups that join and leave a quorum; each step's quorum carries the ballots."""
