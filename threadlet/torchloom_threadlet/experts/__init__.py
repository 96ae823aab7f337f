"""A mixture of experts whose experts survive the loss of a worker: masked, replicated, mirrored.

::

    layer = MoELayer(256, expert, Adam, num_moe_experts=8)
    for number in assignment.experts_of(worker):
        layer.create(number)
    layer.begin(assignment, group)  # and again with each later assignment

    layer(tokens)...backward()
    layer.reduce()
    if all_have_voted:
        layer.commit()
"""

from torchloom_threadlet.experts.moe_layer import MoELayer
from torchloom_threadlet.experts.router import TopKRouter

__all__ = ["MoELayer", "TopKRouter"]
