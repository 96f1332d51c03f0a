import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import torch_linformer
from torch_linformer.data.tokenizer import build_tokenizer
from torch_linformer.data.windows import DocumentEncoder
from torch_linformer.errors import InputError

TEXTS = ["the cat sat on the mat\n", "the other cat ran after the rat\n", "naïve 😀 text  with   spaces\t\n"] * 5
PAD, CLS, SEP, MASK = range(4)
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


@pytest.fixture(scope="module", params=["bytes", "bpe:300"])
def tokenizer(request):
    return build_tokenizer(request.param, TEXTS, max_length=32)


def test_special_tokens(tokenizer):
    names = [tokenizer.pad_token, tokenizer.cls_token, tokenizer.sep_token, tokenizer.mask_token]
    assert names == ["<pad>", "<cls>", "<sep>", "<mask>"]
    assert tokenizer.convert_tokens_to_ids(names) == [PAD, CLS, SEP, MASK]
    assert (tokenizer.model_max_length, tokenizer.padding_side) == (32, "right")
    padded = tokenizer(["a", "abc"], padding=True)
    assert padded["input_ids"][0][0] == CLS and padded["input_ids"][0][2:4] == [SEP, PAD]
    assert tokenizer("<mask>").input_ids == [CLS, MASK, SEP]  # typed by hand it is the special token


def test_byte_tokens():
    tokenizer = build_tokenizer("bytes", [], max_length=8)
    assert len(tokenizer) == 260
    ids = tokenizer("é\0a", add_special_tokens=False).input_ids
    assert len(ids) == len(set(ids)) == 4 and min(ids) > MASK


def test_bpe_learns_the_texts():
    tokenizer = build_tokenizer("bpe:300", iter(TEXTS), max_length=8)
    assert len(tokenizer) == 300
    assert len(tokenizer.tokenize(" the cat")) == 2
    assert len(build_tokenizer("bpe:9999", TEXTS, max_length=8)) < 9999  # there is no more to learn
    assert len(build_tokenizer("bpe:260", TEXTS, max_length=8)) == 260


@pytest.mark.parametrize("word", ["दिल्ली", "తెలుగు", "cafe\u0301s"])
def test_bpe_merges_letters_with_their_marks(word):
    tokenizer = build_tokenizer("bpe:600", [f"{word} {word}."] * 9, max_length=8)
    assert len(tokenizer.tokenize(f"{word} {word}.")) == 3


@given(text=ANY_TEXT)
@settings(max_examples=100, deadline=None)
def test_any_text_round_trips(tokenizer, text):
    encoded = DocumentEncoder(tokenizer, 1_000)([text])
    ids = encoded["input_ids"][0]
    assert ids[0] == CLS and ids[-1] == SEP and not {PAD, CLS, SEP, MASK} & set(ids[1:-1])
    assert tokenizer.decode(ids[1:-1]) == text
    assert encoded["length"] == encoded["num_tokens"] == [len(ids)]


def test_bpe_is_the_same_in_every_process():
    code = (
        "from torch_linformer.data.tokenizer import build_tokenizer;"
        "texts = ['word%d of the %dth document' % (n * n % 97, n) for n in range(400)];"
        "print(build_tokenizer('bpe:400', texts, max_length=8).backend_tokenizer.to_str())"
    )
    found = io.StringIO()
    with contextlib.redirect_stdout(found):
        exec(code, {})
    source, parallel = str(Path(torch_linformer.__file__).parents[1]), os.environ.get("TOKENIZERS_PARALLELISM", "true")
    other = "false" if parallel == "true" else "true"
    env = {**os.environ, "PYTHONPATH": source, "TOKENIZERS_PARALLELISM": other}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout) > 400 and done.stdout == found.getvalue()


@pytest.mark.parametrize("text", ["a" * 1_000_000, "acgt" * 250_000, "some words\n" * 90_000, " " * 1_000_000])
@pytest.mark.parametrize("spec", ["bytes", "bpe:280"])
def test_a_document_of_a_megabyte(spec, text):
    tokenizer = build_tokenizer(spec, [text], max_length=64)
    encoded = DocumentEncoder(tokenizer, 64)([text])
    assert encoded["length"] == [64]
    assert encoded["num_tokens"][0] == len(text) + 2 if spec == "bytes" else encoded["num_tokens"][0] < len(text)
    assert max(map(len, tokenizer.get_vocab())) <= 256  # of longer words training takes more than ten minutes


@pytest.mark.parametrize("spec", ["bpe", "bpe:", "bpe:many", "bpe:-5", "bpe:259", "bpe:3e4"])
def test_sizes_that_bpe_cannot_have(spec):
    with pytest.raises(InputError, match=f"tokenizer '{spec}': write bpe:SIZE with a whole number from 260$"):
        build_tokenizer(spec, TEXTS, max_length=8)


@pytest.mark.parametrize("spec", ["byte", "owner/none", "./none", "/no/such/tokenizer.json"])
def test_tokenizers_that_are_not_there(spec):
    with pytest.raises(InputError) as raised:
        build_tokenizer(spec, TEXTS, max_length=8)
    message = f"tokenizer {spec!r}: neither bytes, nor bpe:SIZE, nor a file or folder, nor within reach as a"
    assert str(raised.value).startswith(message) and "\n" not in str(raised.value)


def test_files_that_are_no_tokenizer(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    for path in (tmp_path, tmp_path / "tokenizer.json"):
        with pytest.raises(InputError) as raised:
            build_tokenizer(str(path), TEXTS, max_length=8)
        assert str(raised.value).startswith(f"tokenizer {str(path)!r}: cannot be loaded (")
        assert "\n" not in str(raised.value)


def test_saved_tokenizers_come_back(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    expected = DocumentEncoder(tokenizer, 20)(TEXTS)
    for path in (tmp_path, tmp_path / "tokenizer.json"):
        loaded = build_tokenizer(str(path), [], max_length=20)
        assert DocumentEncoder(loaded, 20)(TEXTS) == expected
        assert (loaded.pad_token_id, loaded.mask_token_id, loaded.cls_token_id) == (PAD, MASK, CLS)
        assert (loaded.model_max_length, loaded.padding_side) == (20, "right")
        assert loaded.decode(loaded("naïve  😀", add_special_tokens=False).input_ids) == "naïve  😀"


@pytest.mark.parametrize("spec", ["bytes", "bpe:300"])
def test_one_that_goes_on_with_texts_puts_no_end_behind_them_and_names_it(tmp_path, spec):
    build_tokenizer(spec, TEXTS, max_length=20, goes_on=True).save_pretrained(tmp_path)
    loaded = build_tokenizer(str(tmp_path), [], max_length=20)
    assert (loaded.bos_token, loaded.eos_token, loaded.cls_token) == ("<cls>", "<sep>", "<cls>")
    ids = loaded("naïve", add_special_tokens=False).input_ids
    assert loaded("naïve").input_ids == [CLS, *ids]
    assert DocumentEncoder(loaded, 4).begin("naïve") == [CLS, *ids]  # whatever the length
    assert DocumentEncoder(loaded, 20).join(["naïve"])["input_ids"] == [CLS, *ids, SEP]


def test_one_from_elsewhere_is_told_what_its_tokens_are_for(tmp_path, word_tokenizer):
    words = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "a"]
    word_tokenizer(words, pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]").save_pretrained(tmp_path)
    loaded = build_tokenizer(str(tmp_path), [], max_length=8, goes_on=True)
    assert (loaded.bos_token, loaded.eos_token) == ("[CLS]", "[SEP]")


def test_a_tokenizer_without_padding_is_given_one(tmp_path, word_tokenizer):
    word_tokenizer(["[CLS]", "[SEP]", "[UNK]", "a"]).save_pretrained(tmp_path)
    tokenizer = build_tokenizer(str(tmp_path), [], max_length=8)
    assert (tokenizer.pad_token, tokenizer.pad_token_id, len(tokenizer)) == ("<pad>", 4, 5)


def test_a_lone_file_with_the_usual_names(tmp_path, word_tokenizer):
    path = tmp_path / "words.json"
    word_tokenizer(["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]", "a"]).backend_tokenizer.save(str(path))
    tokenizer = build_tokenizer(str(path), [], max_length=8)
    ids = (tokenizer.pad_token_id, tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.mask_token_id)
    assert ids == (0, 1, 2, 4) and len(tokenizer) == 6
