"""A folder's tokenizer reads a text as the commands do, whatever opens it."""

import json

import pytest
from transformers import AutoTokenizer, BertConfig, BertForMaskedLM, BertForSequenceClassification, pipeline

from torch_linformer.data.windows import DocumentEncoder
from torch_linformer.encoders import linearize
from torch_linformer.inference import Predictor
from torch_linformer.inference.export import export_model
from torch_linformer.opening.load import load_model, load_tokenizer, save_tokenizer, write_model

MARKED = ["wet <mask> mud", "sand</sep><pad><pad> and <cls>sea<sep>", "<unk>"]


def read_by_transformers(folder, texts=MARKED):
    return AutoTokenizer.from_pretrained(folder)(texts)["input_ids"]


def test_special_tokens_in_a_text_are_text_to_pipelines_too(classifier_run):
    folder = str(classifier_run.folder)
    ids = DocumentEncoder(load_tokenizer(folder), 1000)(MARKED)["input_ids"]
    assert read_by_transformers(folder) == ids
    classify = pipeline("text-classification", model=folder, top_k=None)
    told = Predictor(folder, device="cpu", precision="fp32")({"text": MARKED})
    for found, expected in zip(classify(MARKED, truncation=True), told["probabilities"], strict=True):
        assert {each["label"]: each["score"] for each in found} == pytest.approx(expected, abs=5e-6)


def test_a_mask_in_a_text_is_one_to_fill_in(masked_run):
    folder = str(masked_run.folder)
    mask = AutoTokenizer.from_pretrained(folder).mask_token_id
    assert mask in read_by_transformers(folder)[0]
    assert len(pipeline("fill-mask", model=folder)(MARKED[0])) == 5
    assert mask not in DocumentEncoder(load_tokenizer(folder), 1000)(MARKED)["input_ids"][0][1:-1]  # a document


@pytest.mark.parametrize(
    ("original", "reads_text"), [(BertForSequenceClassification, True), (BertForMaskedLM, False)], ids=["labels", "mlm"]
)
def test_folders_of_every_command_say_so(classifier_run, tmp_path, original, reads_text):
    tokenizer = AutoTokenizer.from_pretrained(classifier_run.folder, split_special_tokens=False)
    sizes = {"hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 8}
    model = original(BertConfig(vocab_size=len(tokenizer), max_position_embeddings=24, **sizes))
    (tmp_path / "linear").mkdir()
    write_model(linearize(model, k=4), tokenizer, tmp_path / "linear")
    folders = ["linear"]
    if not reads_text:
        export_model(str(tmp_path / "linear"), tmp_path / "exported", "torch")
        folders.append("exported")
    for name in folders:
        fields = json.loads((tmp_path / name / "tokenizer_config.json").read_text())
        assert fields["split_special_tokens"] is reads_text


def test_saving_leaves_the_tokenizer_alone(classifier_run, tmp_path):
    folder = str(classifier_run.folder)
    tokenizer = AutoTokenizer.from_pretrained(folder, split_special_tokens=False)
    save_tokenizer(tokenizer, load_model(folder), tmp_path)
    assert not tokenizer.split_special_tokens and AutoTokenizer.from_pretrained(tmp_path).split_special_tokens
