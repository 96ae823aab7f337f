"""LightGBM's trees for ``boosting``, stored as its text format.

LightGBM does not check a text, and reads out of bounds in a broken one. So a stored text is parsed,
checked and written again, and must come out the same, before LightGBM gets it.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchloom_core.lab.learning import Rows, fill_unknown_columns
from torchloom_core.plugin import Floats, ModelError

_Tree = Mapping[str, NDArray[Any]]
"""LightGBM's arrays of a tree, under its own names; a child below 0 is the leaf ``~child``."""

_INNER = {
    "split_feature": np.int64,
    "threshold": np.float64,
    "decision_type": np.int64,
    "left_child": np.int64,
    "right_child": np.int64,
}
_STORED = {**_INNER, "leaf_value": np.float64}
_COUNTS = {"internal_count": np.int64, "leaf_count": np.int64}

_WITH_UNKNOWN = _UNKNOWN_TO_RIGHT, _UNKNOWN_TO_LEFT = 8, 10
"""Values of ``decision_type`` for numeric splits: the side of missing values."""


class LightGBMTrees:
    """Trees with the interface of scikit-learn's HistGradientBoostingClassifier.

    ``text`` is LightGBM's, of the ``n_iter_`` trees alone.
    """

    def __init__(self, text: str) -> None:
        from lightgbm import Booster

        self.text = text
        self._booster = Booster(model_str=text)
        self.n_iter_: int = self._booster.current_iteration()

    @classmethod
    def grow(
        cls, rows: Rows, trees: int, later: Rows | None, patience: int, **settings: Any
    ) -> "LightGBMTrees":
        """Grow ``trees`` trees, deterministically; fewer if there is nothing left to split.

        With ``later``, stop once ``patience`` trees in a row have not improved the likelihood
        there. ``settings`` are LightGBM's parameters.
        """
        import lightgbm

        training = lightgbm.Dataset(fill_unknown_columns(rows.features), rows.failed)
        check: dict[str, Any] = {}
        if later is not None:
            check = {
                "valid_sets": [training.create_valid(later.features, later.failed)],
                "callbacks": [lightgbm.early_stopping(patience, verbose=False)],
            }
        fixed = {
            "objective": "binary",
            "deterministic": True,
            "force_row_wise": True,
            "num_threads": 1,
            "verbosity": -1,
        }
        booster = lightgbm.train(
            {**fixed, **settings},
            training,
            trees,
            keep_training_booster=True,  # else the trees after the best one are cut off
            **check,
        )
        grown = _read(booster.model_to_string(num_iteration=-1), {**_STORED, **_COUNTS})
        return cls(_written([_where_unknown(tree) for tree in grown], rows.features.shape[1]))

    @classmethod
    def restore(cls, data: bytes, columns: int, part: str) -> "LightGBMTrees":
        """Return the trees from the text in ``part``.

        ModelError if the text was changed, or has indices out of range.
        """
        try:
            text = data.decode()
            trees = list(_read(text, _STORED))
            is_same = _written(trees, columns) == text
        except (KeyError, ValueError, OverflowError):
            is_same = False
        if not is_same:
            raise ModelError(f"{part}: need LightGBM's text as torchLoom writes it")
        if not all(_is_sound(tree, columns) for tree in trees):
            raise ModelError(f"{part}: need node and feature indices in range")
        return cls(text)

    def decision_function(self, features: Floats) -> Floats:
        """Return ``(rows,)`` sums over all trees."""
        log_odds: Floats = self._booster.predict(features, raw_score=True, num_threads=1)
        return log_odds


def _read(text: str, kinds: Mapping[str, type]) -> Iterator[_Tree]:
    """Yield the named arrays of every tree."""
    for block in text.split("\n\nTree=")[1:]:
        _, *lines = block.partition("\n\n")[0].strip().split("\n")
        values = dict(line.split("=", 1) for line in lines)
        yield {name: np.array(values[name].split(), dtype=kind) for name, kind in kinds.items()}


def _written(trees: list[_Tree], columns: int) -> str:
    """Return the text that LightGBM reads as these trees."""
    head = {
        "version": "v4",
        "num_class": 1,
        "num_tree_per_iteration": 1,
        "label_index": 0,
        "max_feature_idx": columns - 1,
        "objective": "binary sigmoid:1",
        "feature_names": " ".join(f"Column_{column}" for column in range(columns)),
        "feature_infos": " ".join(["[-inf:inf]"] * columns),
    }
    blocks = ["tree\n" + _lines(head)]
    for number, tree in enumerate(trees):
        arrays = {name: " ".join(map(repr, tree[name].tolist())) for name in _STORED}
        leaves = {"num_leaves": len(tree["leaf_value"]), "num_cat": 0}
        blocks.append(_lines({"Tree": number, **leaves, **arrays}))
    return "\n\n".join([*blocks, "end of trees\n"])


def _lines(values: Mapping[str, Any]) -> str:
    return "\n".join(f"{name}={value}" for name, value in values.items())


def _where_unknown(tree: _Tree) -> _Tree:
    """Return the tree with a side for missing values also where training had none.

    That is the side of most rows, as in scikit-learn; LightGBM would treat them as 0.
    """
    rows = np.concatenate([tree["internal_count"], tree["leaf_count"][::-1]])  # -1 is leaf 0
    most = np.where(
        rows[tree["left_child"]] > rows[tree["right_child"]], _UNKNOWN_TO_LEFT, _UNKNOWN_TO_RIGHT
    )
    seen = np.isin(tree["decision_type"], _WITH_UNKNOWN)
    return {**tree, "decision_type": np.where(seen, tree["decision_type"], most)}


def _is_sound(tree: _Tree, columns: int) -> bool:
    """Return whether all node and feature indices are in range."""
    inner = len(tree["leaf_value"]) - 1
    if any(len(tree[name]) != inner for name in _INNER):
        return False
    children = np.concatenate([tree["left_child"], tree["right_child"]])
    own = np.tile(np.arange(inner), 2)
    feature = tree["split_feature"]
    return bool(
        ((children >= ~inner) & (children < inner)).all()
        and ((children < 0) | (children > own)).all()
        and ((feature >= 0) & (feature < columns)).all()
        and np.isin(tree["decision_type"], _WITH_UNKNOWN).all()
    )
