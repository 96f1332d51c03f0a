"""Linear encoders of transformers, looked into: their slots, exact tokens and windows, and what answers draw on."""

import json

import pytest
import torch

from torch_linformer.analysis import inspect_text, measure_spectrum, plot_attention, plot_projections
from torch_linformer.analysis.observing import observe_heads
from torch_linformer.analysis.page import inspect_folder, render_inspection
from torch_linformer.analysis.spectrum_report import run_spectrum
from torch_linformer.encoders import linearize
from torch_linformer.encoders.encoder_context import EncoderContext
from torch_linformer.errors import InputError
from torch_linformer.models import LinformerConfig, LinformerForSequenceClassification
from torch_linformer.opening.load import load_backbone, load_model, load_tokenizer

FAMILIES = ("Bert", "Roberta", "DistilBert", "ModernBert")
ROWS = "ForSequenceClassification"


@pytest.fixture(autouse=True, scope="module")
def surroundings(datasets_cache):
    """Caches of the session's own, and the hub switched off."""


LONG, SHORT = "the sand of the warm sea and ice", "wet mud"


def inspected(folder, text=LONG, **options):
    return inspect_text(load_model(str(folder)), load_tokenizer(str(folder)), text, **options)


@torch.no_grad()
def values_and_outputs(model, ids):
    """What the heads of each layer were given as values and gave, ``(H, N, D)``."""
    seen, hooks = [], []

    def look(context, args, kwargs, output):
        seen.append((args[2][0], output[0][0]))

    for module in model.modules():
        if isinstance(module, EncoderContext):
            module.exact_below = 0
            hooks.append(module.register_forward_hook(look, with_kwargs=True))
    model(input_ids=ids)
    for hook in hooks:
        hook.remove()
    return seen


@pytest.mark.parametrize("text", [LONG, SHORT])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_token_map_times_the_values_is_the_output(linear_folder, family, text):
    folder = linear_folder(family)
    seen = inspected(folder, text)
    ids = load_tokenizer(str(folder))(text, return_tensors="pt").input_ids
    pairs = values_and_outputs(load_model(str(folder)), ids)
    assert list(seen.layers) == list(range(len(pairs)))
    for (values, outputs), layer in zip(pairs, seen.layers.values(), strict=True):
        torch.testing.assert_close(layer.weights.sum(-1), torch.ones(4, ids.shape[1]))
        for head in range(4):
            torch.testing.assert_close(layer.token_map(head) @ values[head], outputs[head], rtol=1e-4, atol=1e-5)


def test_layers_that_stayed_local_have_only_a_window(linear_folder):
    layers = inspected(linear_folder("ModernBert")).layers
    assert [layer.num_slots for layer in layers.values()] == [8, 0, 0, 8]
    assert [layer.reach for layer in layers.values()] == [3, 5, 5, 3]
    assert [layer.exact.tolist() for layer in layers.values()] == [[0, 33], [], [], [0, 33]]
    assert layers[0].proj_k is layers[0].proj_v and layers[1].proj_k is None


def test_layers_that_share_their_attention_are_told_apart(original_encoder, linear_folder):
    model = linearize(original_encoder("Albert"), k=4, window=4, max_length=96)
    seen = inspect_text(model, load_tokenizer(str(linear_folder("Bert"))), LONG, layers=[1])
    assert list(seen.layers) == [1]
    both = inspect_text(model, load_tokenizer(str(linear_folder("Bert"))), LONG)
    torch.testing.assert_close(seen.layers[1].weights, both.layers[1].weights)
    assert not torch.allclose(both.layers[0].weights, both.layers[1].weights, atol=1e-2)


@pytest.mark.parametrize("text", [LONG, SHORT])
@pytest.mark.parametrize("family", FAMILIES)
def test_what_an_answer_draws_on(linear_folder, family, text):
    """The numbers of the tokens add up to what the words change, in the model as it is."""
    folder = linear_folder(family, ROWS, id2label={0: "rain", 1: "snow", 2: "sun"})
    answer = inspected(folder, text).answer
    ids = load_tokenizer(str(folder))(text, return_tensors="pt").input_ids
    with torch.no_grad():
        probabilities = load_model(str(folder))(input_ids=ids).logits[0].softmax(-1)
    assert answer.labels == [["rain", "snow", "sun"][number] for number in probabilities.argsort(descending=True)]
    assert answer.probabilities == pytest.approx(sorted(probabilities.tolist(), reverse=True), abs=1e-5)
    relevance = answer.relevance
    changes = relevance.scores - relevance.blank_scores
    torch.testing.assert_close(relevance.values.sum(-1), changes, rtol=0.1, atol=0.05)
    assert not relevance.values[:, [0, -1]].any() and changes.abs().max() > 0.1


def test_a_head_of_ours_on_such_an_encoder(linear_folder):
    folder = linear_folder("ModernBert")
    torch.manual_seed(0)
    model = LinformerForSequenceClassification(LinformerConfig(backbone_config=load_model(str(folder)).config)).eval()
    seen = inspect_text(model, load_tokenizer(str(folder)), LONG)
    assert [layer.num_slots for layer in seen.layers.values()] == [8, 0, 0, 8]
    assert len(seen.answer.labels) == 2 and seen.answer.relevance.values.shape == (2, 34)


def test_the_model_reads_as_before_and_no_more_than_it_can(linear_folder):
    model, tokenizer = (load(str(linear_folder("Bert"))) for load in (load_model, load_tokenizer))
    ids = tokenizer(SHORT, return_tensors="pt").input_ids
    before = model(input_ids=ids).last_hidden_state
    inspect_text(model, tokenizer, SHORT)
    assert torch.equal(model(input_ids=ids).last_hidden_state, before)
    folder = linear_folder("Roberta")  # whose table of positions is longer
    with pytest.raises(ValueError, match=r"^the text has 97 tokens, the model reads 96: shorten it, or read its begin"):
        inspected(folder, "a" * 95)
    assert len(inspected(folder, "a" * 95, cut=True).tokens) == 96


@pytest.mark.parametrize("family", ["DistilBert", "ModernBert"])
def test_a_page(linear_folder, tmp_path, read_page, family):
    folder = linear_folder(family, ROWS, id2label={0: "rain", 1: "snow", 2: "sun"})
    options = {"layers": None, "cut": False, "device": "cpu", "on_progress": lambda doing: None}
    inspect_folder(str(folder), LONG, tmp_path / "page.html", **options)
    page = " ".join(read_page((tmp_path / "page.html").read_text()).text)
    depth = "4" if family == "ModernBert" else "2"
    assert (
        f"34 tokens of the text that was given, read by {depth} layers of 4 heads: K 8, slots chosen by the input"
        in page
    )
    assert "The document chose them: with another text they are others" in page and "Here E = F" in page
    assert "exact_below=0" not in page


def test_a_page_of_a_short_text_says_that_it_is_read_exactly(linear_folder):
    page = render_inspection(inspected(linear_folder("Bert")), model="m", source="s")
    assert "exact_below=0" not in page
    page = render_inspection(inspected(linear_folder("Bert"), SHORT), model="m", source="s")
    assert "texts of at most 20 tokens by ordinary attention, and this is one: the maps show how it would" in page


def test_figures(linear_folder):
    seen = inspected(linear_folder("ModernBert"))
    assert len(plot_attention(seen, layer=0).axes) == 4 and len(plot_attention(seen, layer=1).axes) == 2
    assert len(plot_projections(seen, layer=3, head=2).axes) == 2
    with pytest.raises(ValueError, match="layer 1 has no E and F: a window by itself has no slots"):
        plot_projections(seen, layer=1)


def heads_of(model, ids):
    shown = {}
    layers = observe_heads(model, ids, lambda head: shown.update({(head.layer, head.number): head}))
    assert len(shown) == 4 * layers
    return shown


@pytest.mark.parametrize("family", [*FAMILIES, "Albert", "NomicBert", "EuroBert"])
def test_every_head_is_shown_as_the_original_has_it(original_encoder, family):
    """With rows read exactly all layers read the same; with slots the first one does."""
    original = original_encoder(family)
    ids = torch.randint(4, 260, (1, 28), generator=torch.Generator().manual_seed(0))
    expected = heads_of(original, ids)
    exact = heads_of(linearize(original, k=8, window=6, exact_below=28), ids)
    by_slots = linearize(original, k=8, window=6, exact_below=27)
    shown = heads_of(by_slots, ids)
    assert exact.keys() == shown.keys() == expected.keys()
    for place, head in expected.items():
        torch.testing.assert_close(exact[place].weights, head.weights, rtol=1e-4, atol=1e-5)
        assert exact[place].own is None or (exact[place].mask is not None and family == "ModernBert")
        if place[0] == 0:
            torch.testing.assert_close(shown[place].weights, head.weights, rtol=1e-4, atol=1e-5)
    for place, head in shown.items():
        by_definition = torch.softmax(
            head.scaling * head.query @ head.key.mT + (0 if head.mask is None else head.mask), -1
        )
        torch.testing.assert_close(by_definition, head.weights)
        assert head.own.shape == (28, 6)
        if family == "ModernBert" and place[0] in (1, 2):
            torch.testing.assert_close(head.own, head.weights @ head.value, rtol=1e-4, atol=1e-5)


def test_the_bias_of_distances_of_mpnet(original_encoder):
    """What the original adds to its scores, but for what is the same at all keys."""
    original = original_encoder("MPNet").eval()
    ids = torch.randint(4, 260, (1, 28), generator=torch.Generator().manual_seed(0))
    expected = original(ids, output_attentions=True).attentions
    shown = heads_of(linearize(original, k=8, window=6, exact_below=28), ids)
    for (layer, number), head in shown.items():
        torch.testing.assert_close(head.weights, expected[layer][0, number].detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_spectra_of_a_folder(linear_folder, family):
    model = load_backbone(str(linear_folder(family, ROWS, id2label={0: "rain", 1: "snow", 2: "sun"})))
    documents = [torch.randint(4, 260, (28,), generator=torch.Generator().manual_seed(n)) for n in range(2)]
    spectrum = measure_spectrum(model, documents, ks=(4, 16))
    layers = 4 if family == "ModernBert" else 2
    assert spectrum.singular_values.shape == (layers, 4, 28)
    own = spectrum.low_rank.errors["own_slots"][..., 0]
    assert (own > 0.01).sum() == 2 * 4  # layers that stayed local lose nothing
    short = measure_spectrum(model, [document[:20] for document in documents], ks=(4, 16))
    assert family == "ModernBert" or "own_slots" not in short.low_rank.errors  # whose P is what it attends with


def test_spectra_of_a_head_of_ours_on_such_an_encoder(linear_folder, tmp_path):
    torch.manual_seed(0)
    config = LinformerConfig(backbone_config=load_model(str(linear_folder("Bert"))).config)
    LinformerForSequenceClassification(config).save_pretrained(tmp_path)
    model = load_backbone(str(tmp_path))
    assert type(model).__name__ == "LinearBertModel"
    assert measure_spectrum(model, [torch.arange(4, 32)], ks=(4,)).singular_values.shape == (2, 4, 28)


def test_the_command(linear_folder, tmp_path):
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": f"{n} {LONG}"}) + "\n" for n in range(3)))
    options = {"text_column": None, "lengths": [24], "documents": 2, "index": None, "exact_up_to": 64, "rank": 8}
    options |= {"seed": 0, "output": tmp_path / "out", "device": "cpu", "command": "linformer spectrum"}
    run_spectrum(str(linear_folder("ModernBert")), str(tmp_path / "texts.jsonl"), **options)
    record = json.loads((tmp_path / "out" / "spectrum.json").read_text())
    assert "own_slots" in json.dumps(record)
    with pytest.raises(InputError, match=r"^--length 97: .+ reads at most 96 tokens; take a shorter length$"):
        run_spectrum(
            str(linear_folder("Roberta")),
            str(tmp_path / "texts.jsonl"),
            **{**options, "lengths": [97], "output": tmp_path / "o"},
        )
