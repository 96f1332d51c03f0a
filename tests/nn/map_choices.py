"""The maps to slots that an attention can own, and who can share them."""

PROJECTIONS = ("linear", "random", "conv", "mean", "max")
SHARINGS = ("none", "headwise", "kv")


def owned_maps(projections=PROJECTIONS, sharings=SHARINGS):
    """Pairs of a projection and a sharing: means and maxima have no parameters, so nothing to share."""
    return [
        (projection, sharing)
        for projection in projections
        for sharing in sharings
        if projection not in ("mean", "max") or sharing == "headwise"
    ]
