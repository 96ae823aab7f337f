"""The published table of formulas against a Monte Carlo, as inputs and figures."""

from typing import Any, NamedTuple


class Row(NamedTuple):
    """One row: what goes in, what the formula and the Monte Carlo gave, to four places."""

    inputs: dict[str, Any]
    without: float
    formula: float
    better: float
    monte_carlo: float


class DalyRow(NamedTuple):
    mtbf_s: float
    save_s: float
    restart_s: float
    detect_s: float
    intervals_s: tuple[float, float, float, float]
    """Young, Daly first order, Daly higher order, exact."""
    ettr: float
    monte_carlo: float


DALY = (
    DalyRow(11135, 30, 60, 60, (817, 787, 797, 797), 0.9184, 0.9187),
    DalyRow(6480, 60, 300, 0, (882, 822, 842, 842), 0.8307, 0.8308),
    DalyRow(828, 60, 180, 120, (315, 255, 276, 277), 0.4680, 0.4687),
)


def _prediction(mu, save, proactive, detect, restart, recall, precision):
    return {
        "mtbf_s": mu,
        "save_s": save,
        "proactive_save_s": proactive,
        "restart_s": restart,
        "detect_s": detect,
        "recall": recall,
        "precision": precision,
    }


def _migration(mu, save, pause, detect, restart, recall, precision):
    return {
        "mtbf_s": mu,
        "save_s": save,
        "pause_s": pause,
        "restart_s": restart,
        "detect_s": detect,
        "recall": recall,
        "precision": precision,
    }


PREDICTION = (
    Row(_prediction(60000, 600, 600, 60, 600, 0.85, 0.82), 0.1466, 0.0748, 0.0718, 0.0709),
    Row(_prediction(11135, 60, 20, 60, 120, 0.6, 0.7), 0.1164, 0.0817, 0.0803, 0.0811),
)
MIGRATION = (
    Row(_migration(11135, 60, 30, 60, 300, 0.6, 0.7), 0.1318, 0.0793, 0.0793, 0.0790),
    Row(_migration(28440, 300, 120, 60, 600, 0.3, 0.02), 0.1615, 0.1925, 0.1925, 0.1875),
)
TWO_LEVELS_SAVES = {
    "local_save_s": 5,
    "durable_save_s": 120,
    "job_mtbf_s": 14400,
    "node_mtbf_s": 144000,
}
TWO_LEVELS = {**TWO_LEVELS_SAVES, "local_restart_s": 30, "durable_restart_s": 300}
TWO_LEVELS_ETTR = (0.9334, 0.9302, 0.9303)
STEPS = {"groups": 30, "step_s": 10.9, "mtbf_s": 60, "rejoin_s": 24}
STEPS_EFFICIENCY = (0.8249, 0.8257)
