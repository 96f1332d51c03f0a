"""The maps to slots that an attention can own, and who can share them."""

PROJECTIONS = ("linear", "random", "conv", "mean", "max", "dynamic")
SHARINGS = ("none", "kv_per_head", "headwise", "kv")


def owned_maps(projections=PROJECTIONS, sharings=SHARINGS):
    """Pairs of a projection and a sharing: means and maxima have no parameters, so nothing to share.

    One map for keys and values in each head is what it is whatever the map: two kinds stand for all.
    """
    return [
        (projection, sharing)
        for projection in projections
        for sharing in sharings
        if projection not in ("mean", "max") or sharing == "headwise"
        if sharing != "kv_per_head" or projection in ("linear", "dynamic")
    ]
