"""The maps to slots that an attention can own, who can share them, and what may stand beside slots in a softmax."""

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


EXACT = {"exact_first": 2, "exact_last": 1}
BESIDE_SLOTS = {
    "exact": EXACT,
    "exact-first": {"exact_first": 1},
    "exact-last": {"exact_last": 3, "projection": "max"},
    "fixed-mass": {"slot_mass": "fixed", "projection": "mean"},
    "learned-mass": {"slot_mass": "learned", "projection": "conv", "num_kv_heads": 2},
    "dynamic": {"projection": "dynamic", "sharing": "kv_per_head", "slot_mass": "learned", **EXACT, "num_kv_heads": 1},
    "window": {"window": 4, **EXACT},
    "mass-and-window": {"window": 3, "slot_mass": "learned", "projection": "mean", "exact_first": 1},
    "max-and-mass": {"slot_mass": "fixed", "projection": "max", "window": 2, "exact_last": 2},
    "dynamic-and-window": {"projection": "dynamic", "sharing": "kv", "slot_mass": "fixed", "window": 4, **EXACT},
    "bias": {"slot_bias": True, "slot_mass": "learned", "projection": "dynamic", "exact_last": 1},
    "bias-alone": {"slot_bias": True},
    "bias-of-means": {"slot_bias": True, "projection": "mean"},
    "only-window": {"k": 0, "window": 4},
    "no-slots": {"k": 0, "window": 4, **EXACT, "num_kv_heads": 2},
}
"""Options of attentions that are more than a map: exact tokens, a mass or a bias of slots, a window."""
