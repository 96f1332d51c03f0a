import pytest
from datasets import Dataset

from torch_linformer.data.labels import (
    alike_labels,
    check_labels,
    check_one_hot,
    check_repeated,
    label_names,
    missed_labels,
    name_labels,
)
from torch_linformer.errors import InputError


def labeled(sizes):
    labels = [label for label, size in sizes.items() for _ in range(size)]
    return Dataset.from_dict({"text": [f"{number}" for number in range(len(labels))], "label": labels})


def test_label_names_are_sorted():
    assert label_names(labeled({"b": 1, "10": 2, "a": 3, "9": 1})) == ["10", "9", "a", "b"]
    assert label_names(labeled({"10": 1, "9": 1, "-1": 1})) == ["-1", "9", "10"]
    with pytest.raises(InputError, match="every document has the label 'a': a classifier needs two labels"):
        label_names(labeled({"a": 5}))


def test_labels_that_training_did_not_see():
    check_labels(["a", "b"], labeled({"b": 1}), "test.csv")
    with pytest.raises(InputError) as raised:
        check_labels(["a", "b"], labeled({"a": 3, "c": 2}), "test.csv")
    assert str(raised.value) == "test.csv: 2 documents with label 'c', which no training document has (a, b)"


def test_documents_with_an_unknown_label_are_counted_once():
    tagged = Dataset.from_dict({"label": [["O", "B-X", "I-X", "B-X"], ["O"], ["B-X"]]})
    with pytest.raises(InputError, match=r"^t\.conll: 2 documents with label 'B-X', which no training doc"):
        check_labels(["O"], tagged, "t.conll")
    assert label_names(tagged) == ["B-X", "I-X", "O"]
    assert label_names(Dataset.from_dict({"label": [["a"], []]}), 1) == ["a"]
    with pytest.raises(InputError, match=r"^no document has a label: a classifier needs one label at least"):
        label_names(Dataset.from_dict({"label": [[], []]}), 1)


def test_numbers_are_positions_among_names():
    tagged = Dataset.from_dict({"label": [["0", "2", "1"], ["0"]]})
    assert name_labels(tagged, ["O", "B-X", "I-X"])["label"][:] == [["O", "I-X", "B-X"], ["O"]]
    classes = Dataset.from_dict({"label": ["1", "0", "spam", "2", "-1"]})
    assert name_labels(classes, ["ham", "spam"])["label"][:] == ["spam", "ham", "spam", "2", "-1"]
    assert name_labels(Dataset.from_dict({"label": [["0", "1"], ["1", "0"]]}), ["O", "B-X"])["label"][:] == [
        ["O", "B-X"],
        ["B-X", "O"],
    ]
    assert name_labels(classes, ["0", "3"])["label"][:] == classes["label"][:]


def test_lists_of_zeros_and_ones_are_positions_of_several_labels():
    one_hot = Dataset.from_dict({"label": [["1", "0", "1"], ["0", "1", "0"], ["0", "0", "0"]]})
    assert name_labels(one_hot, ["a", "b", "c"], several=True)["label"][:] == [["a", "c"], ["b"], []]
    numbers = Dataset.from_dict({"label": [["0", "2"], ["1"], []]})
    assert name_labels(numbers, ["a", "b", "c"], several=True)["label"][:] == [["a", "c"], ["b"], []]


def test_lists_of_zeros_and_ones_need_names():
    one_hot = Dataset.from_dict({"label": [["1", "0", "1"], ["0", "1", "0"]]})
    message = "t.json: the labels of each document are 3 zeros and ones: give 3 names{}, in their order, with --label-"
    for names, known in (((), ""), (("a", "b"), ", not 2")):
        with pytest.raises(InputError, match=f"^{message.format(known)}"):
            check_one_hot(one_hot, "t.json", names)
    check_one_hot(one_hot, "t.json", ("a", "b", "c"))
    for labels in ([["1"], ["0"], []], [["1", "0"], ["1"]], [["1", "0"], ["1", "2"]], [["a", "b"], ["b", "c"]]):
        check_one_hot(Dataset.from_dict({"label": labels}), "t.json")
    check_one_hot(Dataset.from_dict({"label": [["1"], ["0"]]}), "t.json", ("a", "b"))  # positions


@pytest.mark.parametrize(
    ("labels", "problem"),
    [
        ([["1"], ["0"]], "t.json: each document has one label, 0 or 1: take --task classify, or name the columns of "),
        (
            [["1", "0"], ["0", "0", "1"]],
            "t.json: the labels are lists of 2 to 3 zeros and ones: write one for each lab",
        ),
    ],
    ids=["one column", "lists of different lengths"],
)
def test_zeros_and_ones_that_are_no_labels(labels, problem):
    with pytest.raises(InputError) as raised:
        check_one_hot(Dataset.from_dict({"label": labels}), "t.json")
    assert str(raised.value).startswith(problem)


def labels_of(*sizes):
    return labeled({f"https://example.org/{number}": size for number, size in enumerate(sizes)})


def test_a_column_whose_values_hardly_come_twice_is_none_of_labels():
    for sizes in ([1] * 12, [2] * 3 + [1] * 7, [8, *[1] * 10]):
        with pytest.raises(InputError) as raised:
            check_repeated(labels_of(*sizes), "t.csv", "url")
        assert str(raised.value) == (
            f"t.csv: {len(sizes)} different labels of {sum(sizes)} documents: is 'url' the label column? "
            "Name another with --label-column, as --task classify needs several documents of each label"
        )
    with pytest.raises(InputError, match=r"^t: 12 different labels of 12 documents: --task classify needs several do"):
        check_repeated(labels_of(*[1] * 12), "t", None)
    check_repeated(labels_of(*[2] * 6), "t.csv", "url")
    check_repeated(labels_of(*[20, 5, 1, 1, 1]), "t.csv", "url")
    check_repeated(labels_of(1, 1, 1), "t.csv", "url")  # so few documents may well have


@pytest.mark.parametrize("other", ["Caf\xe9", "cafe\u0301", "caf\xe9\u200b", "CAF\xc9"])
def test_labels_that_look_the_same(other):
    (warning,) = alike_labels(["bar", "caf\xe9", other])
    assert warning.startswith(f"warning: the labels 'caf\xe9' and {other!r} differ only in case, spaces or how")
    assert alike_labels(["1", "-1", "01", "1.0", "a b", "ab"]) == []


def test_labels_that_a_part_lacks():
    assert missed_labels(["a", "b", "c"], labeled({"b": 1}), "test") == [
        "warning: no test document has the labels 'a', 'c'"
    ]
    assert missed_labels(["b"], labeled({"b": 1}), "test") == []
