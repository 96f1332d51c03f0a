"""What a folder of sentence-transformers says of its texts, and what is refused of it."""

import json

import pytest
from transformers import AutoTokenizer, BertTokenizer, PreTrainedTokenizerFast

from torch_linformer.errors import InputError
from torch_linformer.opening.load import load_own_tokenizer
from torch_linformer.opening.sentence_transformers import SentenceSettings, sentence_pooling, sentence_settings

PROMPTED = {"prompts": {"query": "find: ", "passage": None}, "default_prompt_name": "query"}
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "wet", "Wet", "mud", "##S", "é", "É"]


@pytest.fixture
def folder(tmp_path, save_source, classifier_run):
    """One of sentence-transformers, whose model reads 16 tokens."""
    return save_source(tmp_path / "small", AutoTokenizer.from_pretrained(classifier_run.folder), pooling="cls_token")


def written(path, **fields):
    path.write_text(json.dumps(fields))


def test_all_that_a_folder_says(folder):
    written(folder / "config_sentence_transformers.json", **PROMPTED)
    written(folder / "sentence_bert_config.json", max_seq_length=9, do_lower_case=True)
    settings = sentence_settings(str(folder))
    assert settings == SentenceSettings(
        prompts={"query": "find: ", "passage": ""}, default_prompt_name="query", max_seq_length=9, do_lower_case=True
    )
    assert (settings.prompt(), settings.longest(16), settings.longest(8)) == ("find: ", 9, 8)
    assert (settings.prompt("passage"), settings.prompt("query")) == ("", "find: ")
    with pytest.raises(
        InputError, match="--prompt-name 'sea': no such prompt; the model's folder has 'query', 'passage'"
    ):
        settings.prompt("sea")
    (folder / "modules.json").unlink()
    assert sentence_settings(str(folder)) == SentenceSettings()  # of another folder
    assert (SentenceSettings().prompt(), SentenceSettings().longest(16)) == ("", 16)


def test_files_of_older_and_newer_versions(folder):
    assert sentence_settings(str(folder)) == SentenceSettings(max_seq_length=24)  # the tokenizer's
    written(folder / "sentence_bert_config.json", transformer_task="feature-extraction")
    assert sentence_settings(str(folder)).longest(100) == 24
    (folder / "sentence_bert_config.json").unlink()
    written(folder / "sentence_roberta_config.json", max_seq_length=11, do_lower_case=False)
    assert sentence_settings(str(folder)).max_seq_length == 11


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("sentence_bert_config.json", "[", "sentence_bert_config.json cannot be read ("),
        ("sentence_bert_config.json", "[1]", "sentence_bert_config.json cannot be read ("),
        (
            "sentence_bert_config.json",
            '{"max_seq_length": "9"}',
            "max_seq_length in sentence_bert_config.json must be of type int, got '9'; correct it",
        ),
        (
            "config_sentence_transformers.json",
            '{"prompts": {"query": 1}}',
            "prompt 'query' in config_sentence_transformers.json must be of type str, got 1; correct it",
        ),
        (
            "config_sentence_transformers.json",
            '{"prompts": {"query": ""}, "default_prompt_name": "document"}',
            "default_prompt_name in config_sentence_transformers.json is 'document': name one of its prompts, 'query'",
        ),
    ],
)
def test_what_cannot_be(folder, name, text, message):
    (folder / name).write_text(text)
    with pytest.raises(InputError) as raised:
        sentence_settings(str(folder))
    assert str(raised.value).startswith(f"{folder}: {message}") and "\n" not in str(raised.value)


def test_vectors_without_their_prompt_are_refused(folder):
    pooling = {"pooling_mode_cls_token": True, "include_prompt": False}
    written(folder / "1_Pooling" / "config.json", **pooling)
    assert sentence_pooling(str(folder)) == "cls"
    written(folder / "config_sentence_transformers.json", **PROMPTED)
    with pytest.raises(InputError, match=r"include_prompt in 1_Pooling/config.json is false, .* to null to read texts"):
        sentence_pooling(str(folder))


def test_lower_case_survives_saving(folder, tmp_path):
    """Of a tokenizer whose class builds its own normalizer too; accents stay, as in sentence-transformers."""
    tokenizer = BertTokenizer(
        vocab={word: number for number, word in enumerate(VOCABULARY)}, do_lower_case=False, model_max_length=12
    )
    tokenizer.save_pretrained(folder)
    assert load_own_tokenizer(str(folder)).tokenize("Wet É") == ["Wet", "É"]
    written(folder / "sentence_bert_config.json", do_lower_case=True)
    lower = load_own_tokenizer(str(folder))
    lower.save_pretrained(tmp_path / "saved")
    for found in (lower, AutoTokenizer.from_pretrained(tmp_path / "saved")):
        assert isinstance(found, PreTrainedTokenizerFast) and found.tokenize("Wet É MUD") == ["wet", "é", "mud"]
        assert (found.model_max_length, found.mask_token_id, len(found)) == (12, 4, len(VOCABULARY))
        assert found("Wet", "É").token_type_ids == [0, 0, 0, 1, 1]
    assert lower.backend_tokenizer.to_str().count("Lowercase") == 1
    lower.save_pretrained(folder)
    assert load_own_tokenizer(str(folder)).backend_tokenizer.to_str().count("Lowercase") == 1
