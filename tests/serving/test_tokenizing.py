"""What a request costs before the model reads any of it."""

import asyncio

import pytest

from torch_linformer.data.reading.streamed import Document
from torch_linformer.data.tokenizer import build_tokenizer
from torch_linformer.data.windows import DocumentEncoder
from torch_linformer.serving import tokenizing
from torch_linformer.serving.tokenizing import Tokenizing


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer("bpe:300", ["wet grey mud of the white sand, ice and the sea"] * 9, max_length=32)


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
    monkeypatch.setattr(tokenizing, "TURN", 40)
    texts = ["wet mud", "the sea " * 12, "ice", "white sand " * 400, "mud"]
    encode, checked = DocumentEncoder(tokenizer, 24, overflow="windows"), []
    _, read = windows(encode, texts, 10_000, lambda part: checked.append(part["document"]))
    assert read == encode(texts)
    assert [number for part in checked for number in part] == read["document"] and len(checked) > 2


def test_requests_have_their_turns(tokenizer, monkeypatch):
    """A text that comes after a request of many is tokenized long before the last of these."""
    monkeypatch.setattr(tokenizing, "TURN", 10)
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
