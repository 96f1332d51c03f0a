import pytest

from torch_linformer.data.words import search_words, word_spans, words_of

TEXTS = {
    "Hindi": ("राजधानी दिल्ली में।", ["राजधानी", "दिल्ली", "में", "।"]),
    "Telugu": ("తెలుగు భాష", ["తెలుగు", "భాష"]),
    "Chinese": ("我住在北京。", ["我", "住", "在", "北", "京", "。"]),
    "Japanese": ("カレー、人々", ["カ", "レ", "ー", "、", "人", "々"]),
    "Thai": ("น้อง ๒๓", ["น้", "อ", "ง", "๒๓"]),
    "Korean": ("서울에 살다", ["서울에", "살다"]),
    "Persian, with a joiner": ("می\u200cخواهم", ["می\u200cخواهم"]),
    "accents by themselves": ("cafe\u0301 in Besanc\u0327on", ["cafe\u0301", "in", "Besanc\u0327on"]),
    "a hyphen where a line may break": ("Donau\u00addampf.", ["Donau\u00addampf", "."]),
    "scripts side by side": ("iPhone手机15", ["iPhone", "手", "机", "15"]),
    "signs of several code points": ("👨\u200d👩\u200d👧 1\ufe0f\u20e3!", ["👨\u200d👩\u200d👧", "1\ufe0f\u20e3", "!"]),
    "English": ("Ann (Lee), naïve: 3.5", ["Ann", "(", "Lee", ")", ",", "naïve", ":", "3", ".", "5"]),
}


@pytest.mark.parametrize(("text", "words"), TEXTS.values(), ids=TEXTS)
def test_words_of_a_text(text, words):
    assert [text[start:end] for start, end in word_spans(text)] == words
    assert words_of(text) == [word for word in words if any(letter.isalnum() for letter in word)]


def test_a_name_of_a_program_is_one_word_to_tag_and_counts_by_its_parts():
    assert word_spans("_max_len = 9") == [(0, 8), (9, 10), (11, 12)]
    assert words_of("_max_len = 9") == ["max", "len", "9"]


def test_a_search_finds_names_by_their_parts():
    names = "split_name splitName SplitName HTTPServer2 IDs ΝέοΌνομα"
    assert search_words(names) == [*["split", "name"] * 3, "http", "server2", "i", "ds", "νέο", "όνομα"]
    assert search_words("Straße 海は") == ["straße", "海", "は"]


def test_every_character_but_white_space_is_in_one_word():
    text = "".join(map(chr, range(0x30000))).encode("utf-8", "ignore").decode()
    spans = word_spans(text)
    ends = [end for _, end in spans]
    between = [text[end:start] for end, (start, _) in zip([0, *ends], [*spans, (len(text), 0)], strict=True)]
    assert all(gap == "" or gap.isspace() for gap in between)
