"""Words of a text in any script: what is given a tag, what an entity consists of, and what a bag of words counts.

A letter belongs to a word with its combining marks, such as the vowels of Hindi and accents written by themselves, and
with invisible joiners between letters. Scripts that are written without spaces show no words: there a character is one.
"""

import regex

_UNSPACED = r"[\p{scx=Hani}\p{scx=Bopo}\p{scx=Hira}\p{scx=Kana}\p{scx=Thai}\p{scx=Laoo}\p{scx=Khmr}\p{scx=Mymr}]"
_ALONE = rf"[[\p{{L}}\p{{Nl}}]&&{_UNSPACED}]"
_JOINERS = r"\u00ad\u200c\u200d"  # a hyphen where a line may break, and what makes or prevents a ligature


def _words(beside: str) -> str:
    """A pattern of words that letters, digits and what is ``beside`` them begin."""
    return rf"(?={_ALONE})\X|[\p{{L}}\p{{N}}{beside}--{_ALONE}][\p{{L}}\p{{N}}\p{{M}}{beside}{_JOINERS}--{_ALONE}]*"


_UNSPACED_LETTER = regex.compile(_ALONE, regex.V1)
_HUMPS = regex.compile(r"(?<=[\p{Ll}\p{N}])(?=\p{Lu})|(?<=\p{Lu})(?=\p{Lu}\p{Ll})")
_COUNTED = regex.compile(_words(""), regex.V1)
_TAGGED = regex.compile(rf"{_words('_')}|(?!\s)\X", regex.V1)


def words_of(text: str) -> list[str]:
    """The words of a text as they are counted: also the parts of snake_case names, but no punctuation."""
    words: list[str] = _COUNTED.findall(text)
    return words


def search_words(text: str) -> list[str]:
    """The words by which a text is found, in lower case: both parts of ``split_name``, ``splitName``, ``SplitName``."""
    return words_of(_HUMPS.sub(" ", text).lower())


def word_spans(text: str) -> list[tuple[int, int]]:
    """Where each word of a text begins and ends, in characters. A punctuation mark is a word, as in most corpora."""
    return [match.span() for match in _TAGGED.finditer(text)]


def has_no_spaces(text: str) -> bool:
    """Whether a text has a character of a script that is written without spaces."""
    return _UNSPACED_LETTER.search(text) is not None
