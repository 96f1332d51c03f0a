"""The heads: scores by hand, the losses, and that a few steps of training lower them."""

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from torch_linformer.models import (
    LinformerForMaskedLM,
    LinformerForMultipleChoice,
    LinformerForQuestionAnswering,
    LinformerForSequenceClassification,
    LinformerForTokenClassification,
)
from torch_linformer.models.pooling import pool

POOLINGS = ("mean", "cls", "max", "mean_max")
MASK = torch.tensor([[1, 1, 1, 0], [0, 0, 1, 1], [0, 1, 0, 1]])


@pytest.mark.parametrize("pooling", POOLINGS)
@torch.no_grad()
def test_the_classifier_reads_what_is_pooled(build, token_ids, pooling):
    model = build(LinformerForSequenceClassification, pooling=pooling, num_labels=5)
    ids, mask = token_ids(3, 4), MASK
    hidden = model.linformer(ids, attention_mask=mask).last_hidden_state
    rows = []
    for row in range(3):
        real = hidden[row, mask[row] == 1]
        parts = {"mean": real.mean(0), "cls": real[0], "max": real.amax(0)}
        rows.append(torch.cat([parts[part] for part in pooling.split("_")]))
    logits = model(ids, attention_mask=mask).logits
    assert logits.shape == (3, 5)
    assert_close(logits, torch.stack(rows) @ model.classifier.weight.T + model.classifier.bias)


@pytest.mark.parametrize(("activation", "function"), [("tanh", torch.tanh), ("relu", torch.relu)])
@pytest.mark.parametrize("model_class", [LinformerForSequenceClassification, LinformerForMultipleChoice])
@torch.no_grad()
def test_a_dense_layer_before_the_classifier(build, token_ids, model_class, activation, function):
    model = build(model_class, pooling="cls", classifier_hidden_act=activation, num_labels=5)
    weights, ids, mask = model.state_dict(), token_ids(3, 1, 4), MASK.unsqueeze(1)
    hidden = model.linformer(ids.squeeze(1), attention_mask=MASK).last_hidden_state[torch.arange(3), [0, 2, 1]]
    dense = function(hidden @ weights["pooler.dense.weight"].T + weights["pooler.dense.bias"])
    expected = dense @ weights["classifier.weight"].T + weights["classifier.bias"]
    if model_class is LinformerForSequenceClassification:
        ids, mask = ids.squeeze(1), MASK
    assert_close(model(ids, attention_mask=mask).logits, expected)


@pytest.mark.parametrize("model_class", [LinformerForSequenceClassification, LinformerForMultipleChoice])
def test_the_dense_layer_narrows_what_is_pooled_to_the_width_of_the_model(build, model_class):
    plain = build(model_class, pooling="mean_max").state_dict()
    shapes = {
        name: tuple(weight.shape)
        for name, weight in build(model_class, pooling="mean_max", classifier_hidden_act="gelu").state_dict().items()
        if name not in plain or weight.shape != plain[name].shape
    }
    outputs = len(plain["classifier.bias"])
    expected = {"pooler.dense.weight": (15, 30), "pooler.dense.bias": (15,), "classifier.weight": (outputs, 15)}
    assert shapes == expected


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("weights", [None, [0.5, 3.0, 1.0, 0.0, 7.0], [1, 2, 3, 4, 5]])
@torch.no_grad()
def test_classification_loss(build, token_ids, weights, dtype):
    model = build(LinformerForSequenceClassification, num_labels=5, class_weights=weights, dtype=dtype)
    labels = torch.tensor([1, 4, 3, 0])
    outputs = model(token_ids(4, 11), labels=labels)
    scores = outputs.logits.double()
    losses = [scores[row].logsumexp(0) - scores[row, label] for row, label in enumerate(labels)]
    shares = torch.tensor([1.0 if weights is None else weights[label] for label in labels]).double()
    expected = (torch.stack(losses) * shares).sum() / shares.sum()
    assert outputs.loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert_close(
        outputs.loss.double(),
        F.cross_entropy(scores, labels, weight=weights and torch.tensor(weights).double()),
        rtol=1e-5,
        atol=0,
    )
    assert model(token_ids(4, 11)).loss is None


@pytest.mark.parametrize("weights", [[1.0], [1.0, 2.0, 3.0, 4.0]])
def test_class_weights_for_other_labels_are_refused(tiny, weights):
    with pytest.raises(ValueError, match=f"class_weights has {len(weights)} numbers for 3 labels"):
        LinformerForSequenceClassification(tiny(num_labels=3, class_weights=weights))


@pytest.mark.parametrize("problem_type", ["regression", "multi_label_classification"])
def test_class_weights_need_classes(tiny, problem_type):
    with pytest.raises(ValueError, match=f"class_weights are for one label per row; problem_type is '{problem_type}'"):
        LinformerForSequenceClassification(tiny(num_labels=3, class_weights=[1.0] * 3, problem_type=problem_type))


@pytest.mark.parametrize("problem_type", [None, "regression"])
@pytest.mark.parametrize("labels", [torch.tensor([3.0, -1.0]), torch.tensor([[3], [-1]])], ids=["(B,)", "(B, 1)"])
@torch.no_grad()
def test_one_label_is_a_number_to_come_near(build, token_ids, problem_type, labels):
    model = build(LinformerForSequenceClassification, num_labels=1, problem_type=problem_type)
    outputs = model(token_ids(2, 11), labels=labels)
    first, second = outputs.logits.squeeze(-1).tolist()
    assert outputs.loss.item() == pytest.approx(((first - 3) ** 2 + (second + 1) ** 2) / 2, rel=1e-5)


@torch.no_grad()
def test_regression_of_several_numbers(build, token_ids):
    model = build(LinformerForSequenceClassification, num_labels=3, problem_type="regression")
    labels = torch.tensor([[1.0, 2.0, -3.0], [0.0, 5.0, 7.0]])
    outputs = model(token_ids(2, 11), labels=labels)
    assert outputs.loss.item() == pytest.approx(((outputs.logits - labels) ** 2).mean().item(), rel=1e-5)


@pytest.mark.parametrize("problem_type", ["regression", "multi_label_classification"])
def test_unknown_targets_are_left_out_of_the_mean(build, token_ids, problem_type):
    model = build(LinformerForSequenceClassification, num_labels=3, problem_type=problem_type)
    labels = torch.tensor([[torch.nan, torch.nan, torch.nan], [1.0, torch.nan, 0.0]])
    logits = model(token_ids(2, 11)).logits
    known = ~labels.isnan()
    loss = F.mse_loss if problem_type == "regression" else F.binary_cross_entropy_with_logits
    assert_close(model.loss_of(logits, labels), loss(logits[known].float(), labels[known]))
    model.loss_of(logits, labels).backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    assert model.loss_of(logits, labels * torch.nan) == 0


@pytest.mark.parametrize(("problem_type", "dtype"), [(None, torch.float32), ("multi_label_classification", torch.long)])
@torch.no_grad()
def test_several_labels_a_row(build, token_ids, problem_type, dtype):
    model = build(LinformerForSequenceClassification, num_labels=3, problem_type=problem_type)
    labels = torch.tensor([[1, 0, 1], [0, 0, 1]])
    outputs = model(token_ids(2, 11), labels=labels.to(dtype))
    p = torch.sigmoid(outputs.logits)
    expected = -torch.where(labels == 1, p.log(), (1 - p).log()).mean()
    assert outputs.loss.item() == pytest.approx(expected.item(), rel=1e-5)


@torch.no_grad()
def test_token_classification_by_hand(build, token_ids):
    model = build(LinformerForTokenClassification, num_labels=5)
    ids, mask = token_ids(3, 4), MASK
    labels = torch.tensor([[1, -100, 4, -100], [-100, -100, 0, 3], [-100, 2, -100, -100]])
    outputs = model(ids, attention_mask=mask, labels=labels)
    hidden = model.linformer(ids, attention_mask=mask).last_hidden_state
    assert outputs.logits.shape == (3, 4, 5)
    assert_close(outputs.logits, hidden @ model.classifier.weight.T + model.classifier.bias)
    log_p = outputs.logits.log_softmax(-1)
    expected = -(log_p[0, 0, 1] + log_p[0, 2, 4] + log_p[1, 2, 0] + log_p[1, 3, 3] + log_p[2, 1, 2]) / 5
    assert outputs.loss.item() == pytest.approx(expected.item(), rel=1e-5)


@torch.no_grad()
def test_question_answering_by_hand(build, token_ids):
    model = build(LinformerForQuestionAnswering)
    ids = token_ids(3, 11)
    # The last answer begins inside and ends beyond the input.
    outputs = model(ids, start_positions=torch.tensor([2, 0, 9]), end_positions=torch.tensor([[4], [10], [15]]))
    hidden = model.linformer(ids).last_hidden_state
    expected = hidden @ model.qa_outputs.weight.T + model.qa_outputs.bias
    assert_close(torch.stack([outputs.start_logits, outputs.end_logits], dim=-1), expected)
    starts, ends = outputs.start_logits.log_softmax(-1), outputs.end_logits.log_softmax(-1)
    start_loss = -(starts[0, 2] + starts[1, 0] + starts[2, 9]) / 3
    end_loss = -(ends[0, 4] + ends[1, 10]) / 2
    assert outputs.loss.item() == pytest.approx((start_loss + end_loss).item() / 2, rel=1e-5)
    assert model(ids, start_positions=torch.tensor([2, 0, 9])).loss is None


@torch.no_grad()
def test_an_answer_is_not_looked_for_in_padding(build, token_ids):
    """The loss of a padded batch is the mean of those of its rows by themselves."""
    model = build(LinformerForQuestionAnswering)
    ids, mask = token_ids(3, 4), MASK
    ends = {"start_positions": torch.tensor([1, 2, 1]), "end_positions": torch.tensor([2, 3, 3])}
    alone = []
    for row, real in enumerate(mask.bool()):
        place = real.cumsum(0) - 1
        own = {name: place[positions[row]][None] for name, positions in ends.items()}
        alone.append(model(ids[row][real][None], **own).loss)
    assert_close(model(ids, attention_mask=mask, **ends).loss, torch.stack(alone).mean())


@pytest.mark.parametrize("pooling", POOLINGS)
@torch.no_grad()
def test_multiple_choice_scores_each_choice_as_a_row_of_its_own(build, token_ids, pooling):
    model = build(LinformerForMultipleChoice, pooling=pooling)
    ids = token_ids(2, 3, 11)
    mask = torch.ones_like(ids)
    mask[1, 2, 5:] = 0
    types = ids % 4
    outputs = model(ids, attention_mask=mask, token_type_ids=types, labels=torch.tensor([2, 0]))
    assert outputs.logits.shape == (2, 3)
    for row in range(2):
        for choice in range(3):
            real = mask[row, choice].bool()
            hidden = model.linformer(ids[row, choice, real][None], token_type_ids=types[row, choice, real][None])[0]
            score = model.classifier(pool(hidden, None, pooling)).item()
            assert outputs.logits[row, choice].item() == pytest.approx(score, rel=1e-9)
    log_p = outputs.logits.log_softmax(-1)
    assert outputs.loss.item() == pytest.approx(-(log_p[0, 2] + log_p[1, 0]).item() / 2, rel=1e-5)
    embeds = model.get_input_embeddings()(ids)
    assert_close(
        model(inputs_embeds=embeds, attention_mask=mask, token_type_ids=types).logits, outputs.logits, rtol=0, atol=0
    )


def test_multiple_choice_needs_texts(build):
    with pytest.raises(ValueError, match=r"^give exactly one of input_ids and inputs_embeds$"):
        build(LinformerForMultipleChoice)(attention_mask=torch.ones(1, 2, 3))


@torch.no_grad()
def test_masked_lm_loss_is_the_mean_over_labeled_tokens(build, token_ids):
    model = build(LinformerForMaskedLM)
    ids = token_ids(2, 11)
    labels = torch.full((2, 11), -100)
    labels[0, 3], labels[0, 10], labels[1, 0] = 5, 36, 0
    outputs = model(ids, labels=labels)
    assert outputs.logits.shape == (2, 11, 37)
    log_p = outputs.logits.log_softmax(-1)
    expected = -(log_p[0, 3, 5] + log_p[0, 10, 36] + log_p[1, 0, 0]) / 3
    assert outputs.loss.item() == pytest.approx(expected.item(), rel=1e-5)


def test_sparse_prediction_gives_the_same_loss_and_gradients(build, token_ids):
    model = build(LinformerForMaskedLM).double()
    ids = token_ids(3, 4)
    labels = torch.where(token_ids(3, 4) % 2 == 0, ids, -100)
    dense = model(ids, attention_mask=MASK, labels=labels)
    sparse = model(ids, attention_mask=MASK, labels=labels, sparse_prediction=True)
    assert 0 < len(sparse.logits) < 12
    assert_close(sparse.logits, dense.logits[labels != -100])
    gradients = [torch.autograd.grad(outputs.loss, list(model.parameters())) for outputs in (dense, sparse)]
    assert_close(sparse.loss, dense.loss)
    assert_close(gradients[1], gradients[0])
    with pytest.raises(ValueError, match="predicts the tokens that have labels: give labels"):
        model(ids, sparse_prediction=True)


@torch.no_grad()
def test_masked_lm_scores_by_hand(build, token_ids):
    model = build(LinformerForMaskedLM, layer_norm_eps=0.125, hidden_act="silu")
    ids = token_ids(2, 11)
    weights = model.state_dict()
    hidden = model.linformer(ids).last_hidden_state
    hidden = F.silu(hidden @ weights["lm_head.dense.weight"].T + weights["lm_head.dense.bias"])
    hidden = F.layer_norm(hidden, (15,), weights["lm_head.norm.weight"], weights["lm_head.norm.bias"], 0.125)
    scores = hidden @ weights["linformer.embeddings.word_embeddings.weight"].T
    assert_close(model(ids).logits, scores + weights["lm_head.decoder.bias"])


def losses_of_training(model, batch, steps):
    """The loss before each step, and after the last."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(steps):
        loss = model(**batch).loss
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return [*losses, model(**batch).loss.item()]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"sharing": "layerwise", "pooling": "mean_max"},
        {"attention": "full"},
        {"projection": "dynamic", "slot_mass": "learned", "exact_first": 1},
        {"pooling": "cls", "classifier_hidden_act": "tanh"},
    ],
)
def test_training_a_classifier_lowers_the_loss(tiny, token_ids, fields):
    torch.manual_seed(0)
    model = LinformerForSequenceClassification(tiny(num_labels=3, **fields))
    ids = token_ids(24, 13)
    mask = (torch.arange(13) >= torch.arange(24).unsqueeze(1) % 7).long()
    batch = {"input_ids": ids, "attention_mask": mask, "labels": ids[:, -1] % 3}
    losses = losses_of_training(model, batch, steps=30)
    assert losses[0] == pytest.approx(1.0986, abs=0.2), "ln 3: it starts by guessing"
    assert losses[-1] < losses[0] / 2


def test_training_a_masked_lm_lowers_the_loss(tiny, token_ids):
    torch.manual_seed(0)
    model = LinformerForMaskedLM(tiny())
    ids = token_ids(6, 13)
    hidden = torch.arange(6 * 13).view(6, 13) % 5 == 0
    batch = {"input_ids": ids.masked_fill(hidden, 36), "labels": ids.masked_fill(~hidden, -100)}
    losses = losses_of_training(model, batch, steps=30)
    assert losses[0] == pytest.approx(3.6109, abs=0.2), "ln 37: it starts by guessing"
    assert losses[-1] < losses[0] / 2


@pytest.mark.parametrize(
    ("fields", "pooling"),
    [
        *(({}, pooling) for pooling in POOLINGS),
        ({"attention": "full"}, "mean"),
        ({"projection": "conv", "norm_first": True}, "mean_max"),
        ({"classifier_hidden_act": "tanh"}, "cls"),
    ],
)
def test_bfloat16_autocast(build, token_ids, fields, pooling):
    model = build(LinformerForSequenceClassification, dtype=torch.float32, pooling=pooling, **fields)
    batch = {
        "input_ids": token_ids(3, 11),
        "attention_mask": torch.tensor([[0] * 4 + [1] * 7, [1] * 11, [0] * 11]),
        "labels": torch.tensor([0, 1, 1]),
    }
    expected = model(**batch)
    with torch.autocast(torch.get_default_device().type, dtype=torch.bfloat16):
        outputs = model(**batch)
    outputs.loss.backward()
    assert outputs.loss.dtype == torch.float32
    assert_close(outputs.logits.float(), expected.logits, rtol=0, atol=0.1)
    assert (outputs.logits.float() != expected.logits).any(), "nothing ran in bfloat16"
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
