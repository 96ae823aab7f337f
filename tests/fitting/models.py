"""Models as they are not fitted, for tests."""

from msgspec.structs import replace

from torchloom_core.lab.learning.model import Model


def changed(model, **changes):
    """Return a model as if it were another in some of ``model.info``, its card as well."""
    score = model.card.score
    of_score = {name: value for name, value in changes.items() if name in score.__struct_fields__}
    card = replace(model.card, score=replace(score, **of_score))
    return Model(replace(model.info, **changes), model.parts, card)
