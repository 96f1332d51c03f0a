import pytest

from torch_linformer.data.reading.data_options import DataOptions
from torch_linformer.data.reading.documents import load_documents
from torch_linformer.data.reading.records import TAGGED
from torch_linformer.errors import InputError

ROWS = "{},word,tag\n1,Ann,B\n1,met,O\n2,Bo,B\n"


@pytest.mark.parametrize(
    "name", ["sentence", "Sentence #", "sentence_id", "sent", "sent-id", "SENT_NO", "sentence number"]
)
def test_rows_of_a_sentence_become_one(write, name):
    documents = load_documents(str(write("t.csv", ROWS.format(name))), TAGGED)
    assert documents.dataset["text"][:] == ["Ann met", "Bo"]
    assert documents.dataset["label"][:] == [["B", "O"], ["B"]]
    assert documents.notes[-1] == f"one word a row: sentences by column {name!r}"


def test_an_empty_cell_goes_on_with_the_sentence(write):
    path = write("t.csv", 'Sentence #,Word,Tag\nSentence: 1,Ann,B\n,met,O\nSentence: 2,Bo,B\n,"""",O\n')
    assert load_documents(str(path), TAGGED).dataset["text"][:] == ["Ann met", 'Bo "']


def test_a_number_that_comes_again_later_is_another_sentence(write):
    path = write("t.csv", "sent,word,tag\n1,a,O\n2,b,B\n1,c,O\n")
    assert load_documents(str(path), TAGGED).dataset["text"][:] == ["a", "b", "c"]


def test_a_group_is_that_of_the_first_word(write):
    path = str(write("t.csv", "id,sent,word,tag,letter\nx,1,Ann,B,l1\ny,1,met,O,l1\nz,2,Bo,B,l2\n"))
    grouped = load_documents(path, TAGGED, options=DataOptions(group_column="letter"))
    assert grouped.dataset["group"][:] == ["l1", "l2"]


@pytest.mark.parametrize("columns", ["page,word,tag", "sent,sentence id,word,tag"])
def test_without_one_column_of_sentences_it_is_a_question(write, columns):
    numbers = "1," * (columns.count(",") - 1)
    path = write("t.csv", f"{columns}\n{numbers}Ann,B\n{numbers}met,O\n")
    message = f"one word a row; call the column that numbers the sentences 'sentence', or .* columns: '{columns[:4]}"
    with pytest.raises(InputError, match=message):
        load_documents(str(path), TAGGED)


def test_sentences_of_several_words_are_documents_of_their_own(write):
    path = write("t.csv", "sent,words,tags\n1,Ann met,B O\n1,Bo,B\n")
    assert load_documents(str(path), TAGGED).dataset["text"][:] == ["Ann met", "Bo"]
