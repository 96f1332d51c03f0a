"""How far a fast form may be from the exact result: every bar that a test of arithmetic has, with its reason.

A budget is a number of times the error that the plain formula makes in the same precision, both measured against
float64, and roundings more: machine epsilons of the size of the result. A bar is not raised in the commit that breaks
it: what is over it is wrong, or the reason here is.
"""

TWICE = 2  # any fast form: one rounding where the plain formula has another, at worst both the wrong way
MORE_ROUNDINGS = (
    3  # sums that are split into pieces and added up: oneDNN's products, pooled scores, what the fuzz draws
)
JOINED = 1.5  # two softmaxes joined instead of one: both are exact, the join rounds once

ROUNDINGS = 1  # epsilons that are allowed beside: where the plain formula happens to be exact
PRODUCT_ROUNDINGS = 2  # of a product whose plain form is one call
FUZZ_ROUNDINGS = 8  # of modules, which are several products one after the other
LAYER_ROUNDINGS = 8  # of a layer between two libraries, of which neither is the exact one
WINDOW_ROUNDINGS = 16  # of a window in half precision without a plain form beside it
FLEX_ROUNDINGS = 4  # of FlexAttention beside our own blocks, neither of them exact
POOL_ROUNDINGS = 16  # of slots that are means of equal numbers
CHUNK_ROUNDINGS = 64  # of running sums over 64 positions in float32

EXACT = 1e-11  # float64, one model in two ways: sums in another order
IMPORTED = 1e-10  # float64, another package's formula: sums in another order, over all layers
