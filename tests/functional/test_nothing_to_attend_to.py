"""A query that sees nothing but padding gets zeros, and no gradient: in every implementation, from all parts."""

import itertools

import pytest
import torch
from torch.nn.attention import flex_attention as flex_module
from torch.testing import assert_close

from torch_linformer.functional import ExactTokens, Slots, Window, cpu, reference, slot_attention, use_implementation
from torch_linformer.functional.padding import zero_padding
from torch_linformer.functional.softmax import SoftmaxCall, attend_by_distance

pytestmark = [
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),  # torch's own
]
DOUBLE = {"dtype": torch.float64}
LENGTH, K, WIDTH, REACH, SCALE = 9, 3, 5, 2, 0.7
ENDS = [0, LENGTH - 1]  # exact tokens
# A whole row, one of nothing but padding, and one whose two tokens are seen by the first queries alone.
REAL = torch.arange(LENGTH) < torch.tensor([[LENGTH], [0], [2]])
HAS_SLOTS = torch.tensor([True, False, False])
NAMES = ("exact", "bias", "window", "window_bias")
CASES = [dict(zip(NAMES, on, strict=True)) for on in itertools.product((False, True), repeat=4) if on[2] or not on[3]]


def draw(*shape):
    generator = torch.Generator(torch.get_default_device()).manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator, **DOUBLE)


class Case:
    """Four heads of queries and two of keys: three slots, two exact tokens and a window of five; NaN at padding."""

    def __init__(self, exact, bias, window, window_bias):
        no_slots, hidden = ~HAS_SLOTS[:, None], ~REAL
        if exact:
            hidden = hidden | (
                HAS_SLOTS[:, None] & torch.zeros(LENGTH, dtype=torch.bool).index_fill(0, torch.tensor(ENDS), True)
            )
        self.query = draw(3, 4, LENGTH, WIDTH).requires_grad_()
        self.bias = draw(1, 4, K).requires_grad_() if bias else None
        self.window_bias = draw(4, 2 * REACH + 1).requires_grad_() if window_bias else None
        self.tokens = [draw(3, 2, LENGTH, WIDTH) for _ in range(2)]
        self.tokens[1] = self.tokens[1] + 1

        def pair(sequences, hidden):
            """Keys and values that want a gradient, and what of them is hidden."""
            leaves = [x.masked_fill(hidden[:, None, :, None], float("nan")).requires_grad_() for x in sequences]
            return *leaves, hidden

        self.slots = Slots(*pair([draw(3, 2, K, WIDTH), draw(3, 2, K, WIDTH) + 1], no_slots.expand(3, K)), self.bias)
        self.exact = self.window = None
        if exact:
            self.exact = ExactTokens(*pair([x[:, :, ENDS] for x in self.tokens], no_slots.expand(3, len(ENDS))))
        if window:
            self.window = Window(*pair(self.tokens, hidden)[:2], REACH, hidden, bias=self.window_bias)
        leaves = [x for part in (self.slots, self.exact, self.window) if part is not None for x in part[:2]]
        self.leaves = [self.query, *leaves, *(x for x in (self.bias, self.window_bias) if x is not None)]
        seen_by_window = (torch.arange(LENGTH) < torch.tensor([[LENGTH], [0], [2 + REACH]])) & window
        self.sees_nothing = ~(seen_by_window | HAS_SLOTS[:, None])[:, None].expand(-1, 4, -1)

    def attend(self, **options):
        return slot_attention(self.query, self.slots, exact=self.exact, window=self.window, scale=SCALE, **options)

    def definition(self):
        """Output and weights by the definition, which never looks at what is hidden."""
        rows = []
        for row, head in itertools.product(range(3), range(4)):
            tokens = [x[row, head // 2] for x in (self.window or self.tokens)[:2]]
            if self.exact is not None and HAS_SLOTS[row]:
                own = [x[row, head // 2] for x in self.exact[:2]]
                tokens = [x.index_copy(0, torch.tensor(ENDS), y) for x, y in zip(tokens, own, strict=True)]
            places = [] if self.exact is None else ENDS if HAS_SLOTS[row] else [None, None]
            rows.append(
                reference.attend_beside_slots(
                    self.query[row, head] * (SCALE * WIDTH**0.5),
                    tuple(x[row, head // 2] for x in self.slots[:2]),
                    tuple(tokens),
                    REAL[row].nonzero().flatten().tolist(),
                    allowed=list(range(K)) if HAS_SLOTS[row] else [],
                    log_mass=None if self.bias is None else self.bias[0, head],
                    exact=places,
                    reach=None if self.window is None else REACH,
                    window_bias=None if self.window_bias is None else self.window_bias[head],
                )
            )
        return (torch.stack(x).unflatten(0, (3, 4)) for x in zip(*rows, strict=True))

    def check(self, output, weights, gradients=None):
        expected, expected_weights = self.definition()
        assert_close(output, expected)
        assert self.sees_nothing.any() and not output[self.sees_nothing].any()
        if weights is not None:
            assert_close(weights, expected_weights)
            assert not weights[self.sees_nothing].any()
        if gradients is not None:
            actual = gradients(output, self.leaves)
            assert_close(actual, gradients(expected, self.leaves))
            assert not actual[0][self.sees_nothing].any() and all(x.isfinite().all() for x in actual)


@pytest.fixture
def flex_with_gradients(monkeypatch):
    """FlexAttention refuses tensors that want a gradient on a CPU, in one check; its plain formula has a gradient."""
    monkeypatch.setattr(flex_module, "_validate_device", lambda query, key, value: None)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("sizes", [{}, {"window_block": 4, "window_scores": 1}], ids=["at once", "in parts"])
@pytest.mark.parametrize("need_weights", [False, True], ids=["", "weights"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_by_torch(gradients, monkeypatch, take_at_once, case, need_weights, sizes):
    take_at_once(monkeypatch, **sizes)
    case = Case(**case)
    output, weights = case.attend(impl="torch", need_weights=need_weights)
    assert (weights is not None) == need_weights
    case.check(output, weights, gradients)


@pytest.mark.cpu("the plain formula of FlexAttention")
@pytest.mark.parametrize("case", [case for case in CASES if case["window"] and not case["window_bias"]], ids=str)
def test_by_flex(gradients, flex_with_gradients, case):
    case = Case(**case)
    case.check(*case.attend(impl="flex"), gradients)


@pytest.mark.cpu("elsewhere one softmax is computed")
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_by_flash_which_is_taken_without_asking(gradients, case, training):
    case = Case(**case)
    by_flash = "torch" if training and case.window_bias is not None else "flash"
    with torch.set_grad_enabled(training), use_implementation("auto") as ran:
        case.check(*case.attend(), gradients if training else None)
    assert ran == ({"windowed attention": {by_flash}} if case.window else {"attention": {"torch"}})


@pytest.mark.cpu("oneDNN")
@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_by_onednn(monkeypatch, case, inference):
    """Its attention is batched products, which any processor has; their rounding has its own tests."""
    monkeypatch.setattr(cpu, "onednn_has_bfloat16", lambda: True)
    case = Case(**case)
    low = [
        None if x is None else [y.bfloat16() if isinstance(y, torch.Tensor) and y.dtype != torch.bool else y for y in x]
        for x in (case.slots, case.exact, case.window)
    ]
    slots, exact, window = (x and part(*x) for part, x in zip((Slots, ExactTokens, Window), low, strict=True))
    with torch.inference_mode(inference):
        output, _ = slot_attention(case.query.bfloat16(), slots, exact=exact, window=window, impl="onednn")
    assert output.isfinite().all() and not output[case.sees_nothing].any() and output[~case.sees_nothing].any(-1).all()


@pytest.mark.parametrize("window", [False, True])
def test_dropout_leaves_zeros(window):
    case = Case(exact=True, bias=False, window=window, window_bias=False)
    output, _ = case.attend(dropout_p=0.3)
    assert output.isfinite().all() and not output[case.sees_nothing].any()


@pytest.mark.parametrize("need_weights", [False, True])
def test_a_bias_of_distances(gradients, need_weights):
    query, key, value = (draw(3, 2, LENGTH, WIDTH).requires_grad_() for _ in range(3))
    bias = draw(2, 2 * REACH + 1).requires_grad_()
    leaves, expected = [query, key, value, bias], []
    for row, head in itertools.product(range(3), range(2)):
        real = REAL[row].nonzero().flatten()
        distances = real - torch.arange(LENGTH).unsqueeze(-1)
        added = bias[head][distances.clamp(-REACH, REACH) + REACH]
        scores = query[row, head] @ key[row, head, real].T * SCALE + added
        expected.append(torch.softmax(scores, dim=-1) @ value[row, head, real])
    expected = torch.stack(expected).unflatten(0, (3, 2))
    call = SoftmaxCall(need_weights=need_weights, scale=SCALE)
    output, weights = attend_by_distance(query, Slots(key, zero_padding(value, ~REAL), ~REAL), bias, call)
    assert_close((output, gradients(output, leaves)), (expected, gradients(expected, leaves)))
    assert not output[1].any() and (weights is None or not weights[1].any())
