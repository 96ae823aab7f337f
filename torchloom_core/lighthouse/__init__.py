"""torchft's lighthouse, active: it holds heartbeats, saves its state and lets itself be steered."""
