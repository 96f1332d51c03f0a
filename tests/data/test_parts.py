from collections import Counter

import pytest
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_linformer.data.parts import parse_part, split_documents
from torch_linformer.errors import InputError


@pytest.mark.parametrize(
    ("value", "part"), [("0.2", 0.2), (".5", 0.5), ("1e-3", 0.001), ("test.csv", "test.csv"), ("./0.2", "./0.2")]
)
def test_parts(value, part):
    assert parse_part(value) == part


@pytest.mark.parametrize("value", ["0", "1", "1.5", "-1", "-0.1", "nan", "inf"])
def test_numbers_that_are_no_part(value):
    with pytest.raises(InputError, match=f"^{value} is no part of the data: give a fraction above 0 and below 1"):
        parse_part(value)


@pytest.mark.parametrize("value", ["", " "])
def test_no_part(value):
    with pytest.raises(InputError, match="no part of the data is named"):
        parse_part(value)


def labeled(sizes):
    labels = [label for label, size in sizes.items() for _ in range(size)]
    return Dataset.from_dict({"text": [f"{number}" for number in range(len(labels))], "label": labels})


def test_split_is_stratified_and_complete():
    dataset = labeled({"a": 70, "b": 20, "c": 10})
    rest, part = split_documents(dataset, 0.2, seed=0)
    assert Counter(part["label"]) == {"a": 14, "b": 4, "c": 2}
    assert sorted([*rest["text"], *part["text"]]) == sorted(dataset["text"])
    for piece in (rest, part):
        numbers = [int(text) for text in piece["text"]]
        assert numbers == sorted(numbers)


def test_split_follows_the_seed():
    dataset = labeled({"a": 50, "b": 50})
    first, again, other = (split_documents(dataset, 0.3, seed)[1]["text"][:] for seed in (1, 1, 2))
    assert first == again != other


def test_split_by_hand():
    """Pinned, so that the parts of an earlier run can be made again."""
    assert split_documents(labeled({"a": 6, "b": 4}), 0.3, seed=7)[1]["text"][:] == ["2", "5", "6"]


@given(st.lists(st.integers(1, 30), min_size=1, max_size=8), st.floats(0.01, 0.99), st.integers(0, 9), st.booleans())
@settings(max_examples=60, deadline=None)
def test_every_split(sizes, fraction, seed, stratified):
    sizes = {f"l{number}": size for number, size in enumerate(sizes)}
    dataset = labeled(sizes)
    try:
        rest, part = split_documents(dataset, fraction, seed, stratified)
    except InputError:
        assert max(sizes.values()) == 1 if stratified else len(dataset) == 1
        return
    assert len(rest) + len(part) == len(dataset) and len(part) >= 1
    assert set(rest["text"]).isdisjoint(part["text"])
    if stratified:
        given_away = Counter(part["label"])
        assert set(rest["label"]) == set(sizes)
        for label, size in sizes.items():
            assert given_away[label] == size - 1 or abs(given_away[label] - size * fraction) <= 1
    else:
        assert len(part) in (1, len(dataset) - 1, round(len(dataset) * fraction))


def test_split_without_labels():
    rest, part = split_documents(labeled({"a": 10}).remove_columns("label"), 0.3, seed=0)
    assert (len(rest), len(part)) == (7, 3)


@pytest.mark.parametrize("sizes", [{"a": 1}, {"a": 1, "b": 1}, {}])
def test_too_few_documents_to_split(sizes):
    short = ", no two of which have the same label: give several of each" if len(sizes) > 1 else ": give more"
    with pytest.raises(InputError, match=rf"^cannot split \d documents?{short}, or a file for each part$"):
        split_documents(labeled(sizes), 0.5, seed=0)


# Groups that stay together


def grouped(groups, labels=None):
    columns = {"text": [f"{number}" for number in range(len(groups))], "group": groups}
    return Dataset.from_dict(columns if labels is None else {**columns, "label": labels})


@given(
    st.lists(st.integers(0, 12), min_size=2, max_size=60),
    st.lists(st.sampled_from("abc"), min_size=60, max_size=60),
    st.floats(0.05, 0.95),
    st.integers(0, 9),
    st.booleans(),
)
@settings(max_examples=80, deadline=None)
def test_every_split_of_groups(groups, labels, fraction, seed, stratified):
    dataset = grouped([f"g{group}" for group in groups], labels[: len(groups)])
    try:
        rest, part = split_documents(dataset, fraction, seed, stratified)
    except InputError as error:
        assert "cannot split" in str(error) and (stratified or len(set(groups)) == 1)
        return
    assert sorted([*rest["text"], *part["text"]]) == sorted(dataset["text"]) and len(part) and len(rest)
    assert set(rest["group"]).isdisjoint(part["group"])
    if stratified:
        assert set(rest["label"]) == set(dataset["label"])
    else:
        largest = max(Counter(groups).values())
        assert abs(len(part) - fraction * len(dataset)) <= largest
    assert part["text"][:] == split_documents(dataset, fraction, seed, stratified)[1]["text"][:]


def test_groups_give_each_label_its_share():
    """Authors with ten documents each, most of them of one label."""
    labels = [label for author in range(60) for label in ("a" * 8 + "b" * 2, "b" * 9 + "c")[author % 3 == 0]]
    dataset = grouped([f"{number // 10}" for number in range(600)], labels)
    for seed in range(5):
        rest, part = split_documents(dataset, 0.2, seed)
        assert set(rest["group"]).isdisjoint(part["group"])
        shares = {label: Counter(part["label"])[label] / labels.count(label) for label in "abc"}
        assert all(share == pytest.approx(0.2, abs=0.02) for share in shares.values()), shares
    assert part["text"][:] != split_documents(dataset, 0.2, 0)[1]["text"][:]


def test_another_column_may_keep_documents_together():
    dataset = Dataset.from_dict({"text": ["one", "two", "three"] * 4, "group": [f"{n}" for n in range(12)]})
    rest, part = split_documents(dataset, 0.3, 0, together="text")
    assert len(part) == 4 and set(part["text"]).isdisjoint(rest["text"])
    assert len(split_documents(dataset, 0.3, 0)[1]) == 4  # by itself, that of groups


def test_large_groups_give_one_of_them_at_least():
    rest, part = split_documents(grouped(["a"] * 20 + ["b"] * 10 + ["c"] * 20), 0.05, 0)
    assert (len(rest), len(part)) == (40, 10)


def test_too_few_groups_to_split():
    message = "cannot split 8 documents, whose column 'group' makes 1 group: give more groups, or a file for each part"
    with pytest.raises(InputError, match=f"^{message}$"):
        split_documents(grouped(["a"] * 8), 0.5, 0)
    with pytest.raises(InputError, match="makes 2 groups: give more groups, or a file for each part"):
        split_documents(grouped(["a"] * 4 + ["b"] * 4, ["x"] * 4 + ["y"] * 4), 0.5, 0)  # x and y each in one group
