"""What a request costs before the model reads any of it."""

import asyncio

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from torch_linformer.data.reading.streamed import Document
from torch_linformer.data.tokenizer import build_tokenizer
from torch_linformer.data.windows import DocumentEncoder
from torch_linformer.serving import queues
from torch_linformer.serving.queues import Tokenizing


def make_tokenizer(kind):
    if kind != "wordpiece":
        return build_tokenizer(kind, ["wet grey mud of the white sand, ice and the sea"] * 9, max_length=32)
    vocabulary = {word: number for number, word in enumerate(["[UNK]", "[PAD]", "wet", "mud"])}
    backend = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.normalizer, backend.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]", pad_token="[PAD]")


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer("bpe:300")


class Counted(DocumentEncoder):
    """Counts the characters that it tokenizes."""

    characters = 0

    def _encode(self, texts, fast):
        self.characters += sum(map(len, texts))
        return super()._encode(texts, fast)


def windows(encode, texts, most=100, check=lambda part: None):
    async def run():
        documents = [Document("", text) for text in texts]
        return await Tokenizing().windows(
            encode, lambda part: encode([each.text for each in part]), documents, most, check
        )

    return asyncio.run(run())


def test_a_text_that_is_cut_costs_what_is_read_of_it(tokenizer):
    encode = Counted(tokenizer, 24)
    encode.characters = 0
    text = "wet grey mud " * 100_000
    documents, read = windows(encode, [text])
    assert encode.characters < 2_000 and text.startswith(documents[0].text)
    assert read["input_ids"] == encode([text])["input_ids"]
    assert read["num_tokens"][0] > 24


@pytest.mark.parametrize(
    ("kind", "text", "is_decided"),
    [
        ("bytes", "a" * 400_000, True),
        ("bpe:300", "a" * 400_000, True),
        ("bpe:300", "wet mud " + "a" * 400_000, True),
        ("wordpiece", "a" * 400_000, False),
        ("wordpiece", "mud" + " " * 400_000 + "wet", False),
    ],
)
@pytest.mark.parametrize("options", [{}, {"overflow": "windows"}], ids=["cut", "windows"])
def test_a_text_without_words_costs_what_may_be_read_of_it(kind, text, is_decided, options):
    """Where its beginning has too few tokens to decide what is read, it counts as too long."""
    encode, tokens = Counted(make_tokenizer(kind), 24, **options), 100 if options else 24
    encode.characters = 0
    (document,), read = windows(encode, [text])
    assert encode.characters <= 3 * queues.MAX_CHARS_PER_TOKEN * tokens
    assert text.startswith(document.text) and max(read["num_tokens"]) > tokens
    if is_decided and not options:
        assert read["input_ids"] == encode([text])["input_ids"]


@pytest.mark.parametrize("options", [{"overflow": "windows"}, {"whole": True}], ids=["windows", "whole"])
def test_where_all_is_read_no_more_is_tokenized_than_a_request_may_have(tokenizer, options):
    encode = Counted(tokenizer, 24, **options)
    encode.characters = 0

    def check(part):
        if sum(part["num_tokens"]) > 100:
            raise OverflowError

    with pytest.raises(OverflowError):
        windows(encode, ["wet grey mud " * 100_000], check=check)
    assert encode.characters < 5_000


def test_turns_make_the_windows_of_one_call(tokenizer, monkeypatch):
    monkeypatch.setattr(queues, "TURN", 40)
    texts = ["wet mud", "the sea " * 12, "ice", "white sand " * 400, "mud"]
    encode, checked = DocumentEncoder(tokenizer, 24, overflow="windows"), []
    _, read = windows(encode, texts, 10_000, lambda part: checked.append(part["document"]))
    assert read == encode(texts)
    assert [number for part in checked for number in part] == read["document"] and len(checked) > 2


def test_requests_have_their_turns(tokenizer, monkeypatch):
    """A text that comes after a request of many is tokenized long before the last of these."""
    monkeypatch.setattr(queues, "TURN", 10)
    encode, prepared = DocumentEncoder(tokenizer, 24), []

    async def run():
        threads = Tokenizing()

        def prepare(documents):
            prepared.extend(each.text for each in documents)
            return encode([each.text for each in documents])

        asked = [[Document("", "wet grey mud")] * 100, [Document("", "sea")]]
        await asyncio.gather(*(threads.windows(encode, prepare, each, 9, lambda part: None) for each in asked))

    asyncio.run(run())
    assert prepared.index("sea") < 5
